use super::*;

#[tokio::test(start_paused = true)]
async fn in_an_hour_of_failures_the_server_is_asked_a_bounded_number_of_times() {
    let nudge = Notify::new();
    let mut pause = Pause::default();
    let hour = Duration::from_secs(3600);
    let began = tokio::time::Instant::now();
    let mut tries = 0;
    while began.elapsed() < hour {
        pause.wait(Some(&nudge)).await;
        tries += 1;
    }
    assert!((120..=250).contains(&tries), "{tries} tries in an hour");

    let began = tokio::time::Instant::now();
    nudge.notify_one();
    pause.wait(Some(&nudge)).await;
    assert_eq!(began.elapsed(), Pause::NUDGED);
}

#[test]
fn pauses_double_up_to_a_bound_and_half_of_each_is_chance() {
    let mut pause = Pause::default();
    let least: Vec<u128> = (0..10).map(|_| pause.next(0).as_millis()).collect();
    assert_eq!(
        least,
        [100, 200, 400, 800, 1600, 3200, 6400, 12800, 15000, 15000]
    );
    assert_eq!(pause.next(u64::MAX), Pause::LONGEST);
    pause.reset();
    assert_eq!(pause.next(u64::MAX), Pause::SHORTEST);
}
