//! Enumerations of words.

/// Declares an enumeration of which each variant is a word: of metrics, of JSON, of flags.
#[macro_export]
macro_rules! words {
    (
        $(#[$of_all:meta])*
        $visibility:vis enum $name:ident {
            $($(#[$of_one:meta])* $variant:ident = $word:literal,)+
        }
    ) => {
        $(#[$of_all])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        $visibility enum $name {
            $($(#[$of_one])* $variant,)+
        }

        impl $name {
            /// All of them, in this order.
            $visibility const ALL: [Self; [$($word),+].len()] = [$(Self::$variant),+];

            /// The word.
            $visibility const fn word(self) -> &'static str {
                match self {
                    $(Self::$variant => $word),+
                }
            }
        }
    };
}
