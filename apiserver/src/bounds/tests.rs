use http_body_util::{BodyExt as _, Full, StreamBody};

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

async fn read_chunks(text: &str, chunk: usize) -> Result<String, String> {
    let chunks = text.as_bytes().chunks(chunk).map(Bytes::copy_from_slice);
    let frames = chunks.map(|it| Ok::<_, BoxError>(Frame::data(it)));
    let frames = StreamBody::new(futures_util::stream::iter(frames));
    match BoundedBody::new(frames, Limit::Line).collect().await {
        Ok(whole) => Ok(String::from_utf8(whole.to_bytes().into()).unwrap()),
        Err(error) => Err(error.to_string()),
    }
}

#[tokio::test]
async fn of_each_line_of_a_watch_the_begin_is_read_and_the_end() {
    let over = format!("{}yz\n", "x".repeat(LONGEST_LINE - 1));
    let cut = format!("{}y\n", "x".repeat(LONGEST_LINE - 1));
    for chunk in [LONGEST_LINE * 2, 100_000] {
        let read = read_chunks(&format!("{over}{over}short\n"), chunk).await;
        let wanted = format!("{cut}{cut}short\n");
        assert!(read.unwrap() == wanted, "in chunks of {chunk} bytes");
    }
}

#[tokio::test]
async fn a_line_of_a_watch_that_is_longer_than_an_answer_is_given_up() {
    let longest = format!("{}\n", "x".repeat(LARGEST_ANSWER - 1));
    for chunk in [LARGEST_ANSWER * 2, 100_000] {
        assert!(read_chunks(&longest, chunk).await.is_ok());
        let error = read_chunks(&format!("x{longest}"), chunk).await;
        assert_eq!(error.unwrap_err(), TooLarge::Line.to_string());
    }
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
