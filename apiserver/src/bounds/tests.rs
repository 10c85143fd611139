use http_body_util::{BodyExt as _, Full};

use super::*;

async fn read(text: String, limit: Limit) -> Result<String, String> {
    let body = BoundedBody::new(Full::new(Bytes::from(text)), limit);
    match body.collect().await {
        Ok(whole) => Ok(String::from_utf8(whole.to_bytes().into()).unwrap()),
        Err(error) => Err(error.to_string()),
    }
}

#[tokio::test]
async fn an_answer_may_have_its_limit_and_no_byte_more() {
    let largest = "x".repeat(LARGEST_ANSWER);
    assert_eq!(
        read(largest.clone(), Limit::Answer).await.unwrap().len(),
        LARGEST_ANSWER
    );
    let error = read(largest + "x", Limit::Answer).await.unwrap_err();
    assert_eq!(error, TooLarge::Answer.to_string());
}

#[tokio::test]
async fn a_watch_goes_on_as_long_as_each_line_is_within_its_limit() {
    let line = format!("{}\n", "x".repeat(LONGEST_LINE - 1));
    assert!(read(line.repeat(3), Limit::Line).await.is_ok());
    let error = read(format!("{line}x{line}"), Limit::Line).await;
    assert_eq!(error.unwrap_err(), TooLarge::Line.to_string());
}

#[tokio::test]
async fn of_a_refusal_the_beginning_is_read_in_whole_characters() {
    let text = format!("why: {}", "é".repeat(LARGEST_REFUSAL));
    let cut = read(text.clone(), Limit::Refusal).await.unwrap();
    assert!(text.starts_with(&cut));
    assert_eq!(
        cut.len(),
        LARGEST_REFUSAL - 1,
        "the limit is within a character"
    );
    let short = "é".repeat(100);
    assert_eq!(read(short.clone(), Limit::Refusal).await.unwrap(), short);
}
