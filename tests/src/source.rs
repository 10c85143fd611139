//! The product's own sources as the compiler reads them: the modules of a crate, without what only
//! its tests see.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use proc_macro2::{Delimiter, TokenStream, TokenTree};
use quote::ToTokens as _;
use syn::visit_mut::{self, VisitMut};
use syn::{Attribute, ImplItem, Item, Stmt};

/// The product's crates: the directories below the repository's root.
pub const CRATES: [&str; 10] = [
    "cni",
    "ovs",
    "apiserver",
    "cluster",
    "daemon",
    "node",
    "agent/netns",
    "agent",
    "agent/tools",
    "controller",
];

/// The repository's root.
pub fn root() -> PathBuf {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
    tests.parent().expect("a directory").to_owned()
}

/// The Rust sources below a directory, tests included.
pub fn files(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut directories = vec![directory.to_owned()];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(directory).expect("a directory").flatten() {
            let path = entry.path();
            if path.is_dir() {
                directories.push(path);
            } else if path.extension().is_some_and(|it| it == "rs") {
                found.push(path);
            }
        }
    }
    found
}

/// A source file of a crate.
pub struct Module {
    /// Its names from the crate's root; empty for the root.
    pub path: Vec<String>,
    /// The file.
    pub file: PathBuf,
    /// Its tokens, without documentation.
    code: TokenStream,
}

impl Module {
    /// The modules of a crate's library and programs, by their `mod` lines.
    ///
    /// # Panics
    /// A file can't be read, or is not Rust.
    pub fn of_crate(name: &str) -> Vec<Self> {
        let source = root().join(name).join("src");
        let mut found = Vec::new();
        for place in ["lib.rs", "main.rs", "plugin/main.rs"] {
            let file = source.join(place);
            if file.exists() {
                let beside = file.parent().expect("a directory").to_owned();
                let names = place.split_once('/').map(|(first, _)| first.to_owned());
                read(file, &beside, names.into_iter().collect(), &mut found);
            }
        }
        found
    }

    /// The paths in its code, each as its names; a `{…}` is one path for each of its branches.
    pub fn paths(&self) -> Vec<Vec<String>> {
        let mut found = Vec::new();
        paths(self.code.clone(), &[], &mut found);
        found
    }

    /// The texts in its code.
    pub fn texts(&self) -> Vec<String> {
        let mut found = Vec::new();
        each_token(self.code.clone(), &mut |token| {
            if let TokenTree::Literal(literal) = token
                && let Ok(text) = syn::parse_str::<syn::LitStr>(&literal.to_string())
            {
                found.push(text.value());
            }
        });
        found
    }

    /// Number of lines with code: no blank lines, comments or documentation.
    pub fn lines(&self) -> usize {
        let mut lines = BTreeSet::new();
        each_token(self.code.clone(), &mut |token| match token {
            TokenTree::Group(group) => {
                lines.insert(group.span_open().start().line);
                lines.insert(group.span_close().end().line);
            }
            token => lines.extend(token.span().start().line..=token.span().end().line),
        });
        lines.len()
    }
}

/// Reads a file and, from `beside` and below, the modules that it declares.
fn read(file: PathBuf, beside: &Path, path: Vec<String>, found: &mut Vec<Module>) {
    let text = fs::read_to_string(&file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
    let mut parsed = syn::parse_file(&text).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
    WithoutTests.visit_file_mut(&mut parsed);
    let declared = parsed.items.iter().filter_map(|item| match item {
        Item::Mod(module) if module.content.is_none() => Some(module.ident.to_string()),
        _ => None,
    });
    let declared: Vec<String> = declared.collect();
    let code = without_documentation(parsed.into_token_stream());
    let own = path.clone();
    found.push(Module { path, file, code });
    for name in declared {
        let places = [format!("{name}.rs"), format!("{name}/mod.rs")];
        let file = places.iter().map(|place| beside.join(place));
        let file = file.into_iter().find(|file| file.exists());
        let file = file.unwrap_or_else(|| panic!("no file of the module {name}"));
        let path = own.iter().cloned().chain([name.clone()]).collect();
        read(file, &beside.join(name), path, found);
    }
}

/// Removes all that is marked `#[cfg(test)]`.
struct WithoutTests;

impl VisitMut for WithoutTests {
    fn visit_file_mut(&mut self, file: &mut syn::File) {
        file.items.retain(|item| !is_for_tests(item));
        visit_mut::visit_file_mut(self, file);
    }

    fn visit_item_mod_mut(&mut self, module: &mut syn::ItemMod) {
        if let Some((_, items)) = &mut module.content {
            items.retain(|item| !is_for_tests(item));
        }
        visit_mut::visit_item_mod_mut(self, module);
    }

    fn visit_item_impl_mut(&mut self, block: &mut syn::ItemImpl) {
        block.items.retain(|item| match item {
            ImplItem::Fn(item) => !marks_tests(&item.attrs),
            ImplItem::Const(item) => !marks_tests(&item.attrs),
            _ => true,
        });
        visit_mut::visit_item_impl_mut(self, block);
    }

    fn visit_fields_named_mut(&mut self, fields: &mut syn::FieldsNamed) {
        let kept = std::mem::take(&mut fields.named).into_iter();
        fields.named = kept.filter(|field| !marks_tests(&field.attrs)).collect();
        visit_mut::visit_fields_named_mut(self, fields);
    }

    fn visit_block_mut(&mut self, block: &mut syn::Block) {
        block.stmts.retain(|statement| match statement {
            Stmt::Item(item) => !is_for_tests(item),
            Stmt::Local(local) => !marks_tests(&local.attrs),
            Stmt::Expr(syn::Expr::Block(block), _) => !marks_tests(&block.attrs),
            _ => true,
        });
        visit_mut::visit_block_mut(self, block);
    }
}

fn is_for_tests(item: &Item) -> bool {
    marks_tests(match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => return false,
    })
}

fn marks_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let is_test = |list: &syn::MetaList| list.tokens.to_string() == "test";
        attribute.path().is_ident("cfg") && attribute.meta.require_list().is_ok_and(is_test)
    })
}

fn without_documentation(code: TokenStream) -> TokenStream {
    let mut kept: Vec<TokenTree> = Vec::new();
    for token in code {
        let TokenTree::Group(group) = token else {
            kept.push(token);
            continue;
        };
        let is_mark = |it: &TokenTree| match it {
            TokenTree::Punct(it) => matches!(it.as_char(), '#' | '!'),
            _ => false,
        };
        let first = group.stream().into_iter().next();
        if kept.last().is_some_and(is_mark)
            && group.delimiter() == Delimiter::Bracket
            && matches!(first, Some(TokenTree::Ident(it)) if it == "doc")
        {
            while kept.pop_if(|it| is_mark(it)).is_some() {}
            continue;
        }
        let mut inner =
            proc_macro2::Group::new(group.delimiter(), without_documentation(group.stream()));
        inner.set_span(group.span());
        kept.push(inner.into());
    }
    kept.into_iter().collect()
}

fn each_token(code: TokenStream, report: &mut dyn FnMut(&TokenTree)) {
    for token in code {
        report(&token);
        if let TokenTree::Group(group) = token {
            each_token(group.stream(), report);
        }
    }
}

/// The paths in a stream of tokens, each after `prefix`.
fn paths(code: TokenStream, prefix: &[String], found: &mut Vec<Vec<String>>) {
    let is_colon = |it: &TokenTree| matches!(it, TokenTree::Punct(it) if it.as_char() == ':');
    let mut tokens = code.into_iter().peekable();
    while let Some(token) = tokens.next() {
        let mut path = prefix.to_vec();
        match token {
            TokenTree::Ident(name) => path.push(name.to_string()),
            TokenTree::Group(group) => {
                paths(group.stream(), &[], found);
                continue;
            }
            _ => continue,
        }
        while tokens.next_if(is_colon).is_some() && tokens.next_if(is_colon).is_some() {
            match tokens.next_if(|it| matches!(it, TokenTree::Ident(_) | TokenTree::Group(_))) {
                Some(TokenTree::Ident(name)) => path.push(name.to_string()),
                Some(TokenTree::Group(branches)) => paths(branches.stream(), &path, found),
                _ => {}
            }
        }
        found.push(path);
    }
}
