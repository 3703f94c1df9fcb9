use super::*;

/// A hundred steps in 10 seconds: 9 seconds of work and 0.5 of waiting, the rest unaccounted.
fn healthy(rank: usize) -> RankTimes {
    RankTimes {
        rank,
        steps: 100,
        total_s: 10.0,
        data_s: 0.5,
        forward_s: 2.5,
        backward_s: 5.0,
        comm_wait_s: 0.5,
        optimizer_s: 1.0,
        checkpoint_s: 0.0,
        comm_busy_s: 3.0,
        bytes_sent: 410_000_000,
    }
}

/// Four ranks in lockstep: after a change of their work all last as long as the slowest, and who is
/// faster waits for it.
fn in_lockstep(change: impl Fn(&mut RankTimes)) -> Vec<RankTimes> {
    let mut ranks: Vec<RankTimes> = (0..4).map(healthy).collect();
    ranks.iter_mut().for_each(change);
    // 0.5 are unaccounted.
    let needs = |rank: &RankTimes| {
        let work = rank.data_s + rank.forward_s + rank.backward_s + rank.optimizer_s;
        work + rank.comm_wait_s + rank.checkpoint_s + 0.5
    };
    let slowest = most(ranks.iter().map(needs));
    for rank in &mut ranks {
        rank.comm_wait_s += slowest - needs(rank);
        rank.total_s = slowest;
    }
    ranks
}

fn setting() -> Setting {
    Setting { world_size: 4, threads_per_rank: 2, ..Setting::default() }
}

fn kinds(verdict: &Verdict) -> Vec<(Kind, Option<usize>)> {
    verdict.findings.iter().map(|finding| (finding.kind, finding.rank)).collect()
}

fn percents(verdict: &Verdict) -> Vec<f64> {
    verdict.findings.iter().map(|finding| (finding.share * 100.0).round()).collect()
}

#[test]
fn a_rank_that_is_slow_in_data_is_named() {
    let ranks = in_lockstep(|rank| rank.data_s = if rank.rank == 3 { 3.5 } else { 0.5 });
    let verdict = judge(&ranks, &setting());
    assert_eq!(kinds(&verdict), [(Kind::Straggler, Some(3))]);
    assert_eq!(
        verdict.to_string(),
        "rank 3 is 7.0 times slower in data: 35.0 ms a step instead of 5.0 ms, the others wait \
         23 % of the step for it; look at the loader's workers, the disk and the cost of \
         transforms on its machine"
    );
}

#[test]
fn a_rank_that_is_slow_in_forward_is_named() {
    let slow = |rank: &mut RankTimes| {
        if rank.rank == 1 {
            rank.forward_s *= 1.6;
            rank.backward_s *= 1.25;
        }
    };
    let verdict = judge(&in_lockstep(slow), &setting());
    assert_eq!(kinds(&verdict), [(Kind::Straggler, Some(1))]);
    let text = &verdict.findings[0].text;
    assert!(text.starts_with("rank 1 is 1.6 times slower in forward: 40.0 ms a step "), "{text}");
    assert!(text.contains("wait 22 % of") && text.contains("thermal throttling"), "{text}");
    assert!(text.contains("cores that it is pinned to"), "{text}");
    let setting = Setting { device_is_cpu: false, ..setting() };
    let text = judge(&in_lockstep(slow), &setting).to_string();
    assert!(text.contains("another program on its device"), "{text}");
}

#[test]
fn a_slow_link_makes_every_rank_wait() {
    let ranks = in_lockstep(|rank| {
        rank.comm_wait_s = 5.6;
        rank.comm_busy_s = 8.2;
    });
    let verdict = judge(&ranks, &setting());
    assert_eq!(kinds(&verdict), [(Kind::Communication, None)]);
    assert_eq!(
        verdict.to_string(),
        "37 % of the step waits for communication (4.1 MB a step at 50.0 MB/s): try a larger \
         batch than 32, bf16 compression (distributed.compression = \"bf16\") or accumulation 4 \
         (train.accumulate_grad_batches = 4)"
    );
    let used = Setting { compression: true, accumulate_grad_batches: 2, machines: 2, ..setting() };
    let text = judge(&ranks, &used).to_string();
    assert!(!text.contains("bf16"), "{text}");
    assert!(text.contains("accumulation 8 (train.accumulate_grad_batches = 8)"), "{text}");
    assert!(text.contains("or a faster network between the machines"), "{text}");
}

#[test]
fn a_loader_that_is_slow_everywhere_is_no_straggler() {
    let ranks = in_lockstep(|rank| rank.data_s = 6.0 + 0.1 * rank.rank as f64);
    let verdict = judge(&ranks, &Setting { loader_workers: 2, ..setting() });
    assert_eq!(kinds(&verdict), [(Kind::Data, None)]);
    assert_eq!(
        verdict.to_string(),
        "38 % of the step waits for data: try more loader threads (data.workers = 4, if the \
         machine has idle cores), cheaper transforms or more prefetched batches \
         (data.prefetch_factor)"
    );
    let text = judge(&ranks, &Setting { loader_workers: 0, ..setting() }).to_string();
    assert!(text.contains("data.workers = 1") && !text.contains("prefetch"), "{text}");
}

#[test]
fn a_healthy_run_is_bound_by_its_device() {
    let ranks: Vec<RankTimes> = (0..4).map(healthy).collect();
    let verdict = judge(&ranks, &setting());
    assert_eq!(kinds(&verdict), [(Kind::ComputeBound, None)]);
    assert_eq!(
        verdict.to_string(),
        "forward (25 %) and backward (50 %) take 75 % of the step, and nothing else stands out: \
         the CPU (2 threads a rank) is the limit"
    );
}

#[test]
fn a_single_rank_is_never_a_straggler() {
    let slow = RankTimes { data_s: 3.5, forward_s: 1.0, backward_s: 3.5, ..healthy(0) };
    let verdict = judge(&[slow], &Setting::default());
    assert_eq!(kinds(&verdict), [(Kind::Data, None)]);
    let text = judge(&[healthy(0)], &Setting::default()).to_string();
    assert!(text.ends_with("the CPU (1 thread a rank) is the limit"), "{text}");
}

#[test]
fn the_other_of_two_ranks_waits() {
    let mut ranks = in_lockstep(|rank| rank.forward_s = if rank.rank == 0 { 4.5 } else { 2.5 });
    ranks.truncate(2);
    let text = judge(&ranks, &setting()).to_string();
    assert!(text.contains("the other rank waits 17 % of the step for it"), "{text}");
}

#[test]
fn a_slow_rank_and_a_slow_link_are_told_apart() {
    let ranks = in_lockstep(|rank| {
        rank.comm_wait_s = 4.0;
        rank.backward_s = if rank.rank == 2 { 7.5 } else { 5.0 };
    });
    let verdict = judge(&ranks, &setting());
    assert_eq!(kinds(&verdict), [(Kind::Communication, None), (Kind::Straggler, Some(2))]);
    assert_eq!(percents(&verdict), [25.0, 16.0]);
    assert_eq!(verdict.to_string().lines().count(), 2);
}

#[test]
fn two_slow_ranks_do_not_hide_each_other() {
    let ranks = in_lockstep(|rank| rank.forward_s = if rank.rank < 2 { 4.5 } else { 2.5 });
    let verdict = judge(&ranks, &setting());
    assert_eq!(kinds(&verdict), [(Kind::Straggler, Some(0)), (Kind::Straggler, Some(1))]);
}

#[test]
fn small_differences_are_no_straggler() {
    // 1.05 times as slow; and 1.5 times, while waiting for the link takes nearly all of the time.
    let ranks = in_lockstep(|rank| rank.forward_s += if rank.rank == 1 { 0.5 } else { 0.0 });
    assert_eq!(kinds(&judge(&ranks, &setting())), [(Kind::ComputeBound, None)]);
    let ranks = in_lockstep(|rank| {
        rank.comm_wait_s = 100.0;
        rank.forward_s += if rank.rank == 1 { 4.5 } else { 0.0 };
    });
    assert_eq!(kinds(&judge(&ranks, &setting())), [(Kind::Communication, None)]);
}

/// Rank 0 saves while the others wait: neither is it slow, nor is the link.
#[test]
fn who_saves_for_all_is_not_slow() {
    let saving = |rank: &mut RankTimes| rank.checkpoint_s = if rank.rank == 0 { 2.5 } else { 0.0 };
    let verdict = judge(&in_lockstep(saving), &setting());
    assert_eq!(kinds(&verdict), [(Kind::Checkpoint, None)]);
    assert_eq!(
        verdict.to_string(),
        "checkpoints take 20 % of the time: save 5 times as rarely (checkpoint.every_n_steps) or \
         to a faster disk"
    );
    // Now the two wait for each other, at different times, and the link still is fast.
    let mut ranks = in_lockstep(saving);
    for rank in &mut ranks {
        rank.total_s += 4.0;
        let spent = if rank.rank == 2 { &mut rank.data_s } else { &mut rank.comm_wait_s };
        *spent += 4.0;
    }
    let verdict = judge(&ranks, &setting());
    assert_eq!(kinds(&verdict), [(Kind::Straggler, Some(2)), (Kind::Checkpoint, None)]);
}

#[test]
fn what_the_optimizer_and_others_take_is_told() {
    let ranks = in_lockstep(|rank| rank.optimizer_s = 3.0);
    let text = judge(&ranks, &setting()).to_string();
    assert_eq!(
        text,
        "the optimizer takes 25 % of the step: try accumulation 2 \
         (train.accumulate_grad_batches = 2) or its state shared among the ranks \
         (distributed.zero_stage = 1)"
    );
    let ranks: Vec<RankTimes> =
        (0..4).map(|rank| RankTimes { backward_s: 4.0, ..healthy(rank) }).collect();
    let verdict = judge(&ranks, &setting());
    assert_eq!(kinds(&verdict), [(Kind::Unaccounted, None)]);
    let text = verdict.to_string();
    assert!(text.starts_with("15 % of the step is outside the measured phases: "), "{text}");
}

#[test]
fn callbacks_of_one_rank_are_told_once() {
    let extra = |seconds: f64| {
        let mut ranks: Vec<RankTimes> = (0..4).map(healthy).collect();
        for rank in &mut ranks {
            rank.total_s += seconds;
            rank.comm_wait_s += if rank.rank == 0 { 0.0 } else { seconds };
        }
        judge(&ranks, &setting())
    };
    let verdict = extra(1.0);
    assert_eq!(kinds(&verdict), [(Kind::Unaccounted, Some(0))]);
    assert!(verdict.to_string().starts_with("14 % of the step of rank 0 is outside "), "{verdict}");
    let verdict = extra(4.0);
    assert_eq!(kinds(&verdict), [(Kind::Straggler, Some(0))]);
    assert!(verdict.to_string().contains("slower outside the measured phases"), "{verdict}");
}

#[test]
fn a_phase_that_the_others_lack_has_no_ratio() {
    let ranks = in_lockstep(|rank| rank.data_s = if rank.rank == 3 { 3.5 } else { 0.0 });
    let text = judge(&ranks, &setting()).to_string();
    assert!(text.starts_with("rank 3 is slower in data: 35.0 ms a step instead of none"), "{text}");
}

#[test]
fn times_of_nothing_are_no_verdict() {
    let zero = |rank| RankTimes { rank, ..RankTimes::default() };
    let strange = RankTimes { total_s: f64::NAN, ..healthy(1) };
    for ranks in [vec![], vec![zero(0)], vec![zero(0), zero(1)], vec![healthy(0), strange]] {
        let verdict = judge(&ranks, &setting());
        assert_eq!(kinds(&verdict), []);
        assert_eq!(verdict.to_string(), "no step was measured");
    }
    // Next to nothing, parts that are more than the whole, and parts that are no numbers.
    let tiny = |rank| RankTimes { total_s: 1e-300, steps: 0, ..healthy(rank) };
    let negative = |rank| RankTimes { data_s: -1.0, comm_wait_s: f64::NAN, ..healthy(rank) };
    for ranks in [[tiny(0), tiny(1)], [tiny(0), healthy(1)], [negative(0), negative(1)]] {
        let verdict = judge(&ranks, &setting());
        assert!(!verdict.findings.is_empty());
        for Finding { share, text, .. } in verdict.findings {
            assert!((0.0..=1.0).contains(&share), "{share}: {text}");
            assert!(!text.contains("NaN") && !text.contains("inf"), "{text}");
        }
    }
}

#[test]
fn verdicts_are_written_as_json() {
    let verdict = judge(&(0..4).map(healthy).collect::<Vec<_>>(), &setting());
    let json = serde_json::to_string(&verdict).unwrap();
    assert!(json.starts_with(r#"{"findings":[{"kind":"compute_bound","rank":null,"#), "{json}");
    assert_eq!(serde_json::from_str::<Verdict>(&json).unwrap(), verdict);
}

#[test]
fn factors_bring_the_share_below_the_limit() {
    let factors = [0.1, 0.15, 0.2, 0.3, 0.37, 1.0].map(|share| costs::factor(share, 0.1));
    assert_eq!(factors, [2, 2, 3, 4, 4, 11]);
}
