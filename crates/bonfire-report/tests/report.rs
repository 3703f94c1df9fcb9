//! The report of a made-up run.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test reports by panicking")]

mod sample;

use bonfire_report::history::{Phase, Row};
use bonfire_report::html::{self, Input, Standing};
use std::time::{Duration, Instant};

/// Panics unless every tag is closed in its order and every `&` begins an entity.
fn assert_well_formed(html: &str) {
    let (mut open, mut rest) = (Vec::new(), html);
    while let Some(start) = rest.find('<') {
        assert_entities(&rest[..start]);
        let end = start + rest[start..].find('>').expect("an unfinished tag");
        let tag = &rest[start + 1..end];
        rest = &rest[end + 1..];
        let name = tag.trim_start_matches('/').split([' ', '/']).next().unwrap().to_string();
        assert!(!tag[1..].contains('<') && tag.matches('"').count() % 2 == 0, "<{tag}>");
        if tag.starts_with('/') {
            assert_eq!(open.pop().as_ref(), Some(&name), "in <{tag}>");
        } else if !tag.ends_with('/') && !["meta", "!DOCTYPE"].contains(&name.as_str()) {
            // What is inside these is not HTML.
            if ["script", "style"].contains(&name.as_str()) {
                rest = &rest[rest.find(&format!("</{name}>")).unwrap()..];
            }
            open.push(name);
        }
    }
    assert!(open.is_empty(), "left open: {open:?}");
}

fn assert_entities(text: &str) {
    for entity in text.split('&').skip(1) {
        let name = entity.split(';').next().unwrap();
        assert!(["amp", "lt", "gt", "quot", "#39"].contains(&name), "&{entity}");
    }
}

#[test]
fn the_report_has_every_section_of_a_run() {
    let folder = tempfile::tempdir().unwrap();
    sample::write(folder.path());
    let path = html::write(folder.path(), Standing::AsItsFilesTell).unwrap();
    let html = std::fs::read_to_string(&path).unwrap();
    assert_eq!(path, folder.path().join("report.html"));
    assert_well_formed(&html);
    let charts = [
        "Loss",
        "Accuracy",
        "Learning rate",
        "Gradient norm",
        "Loss scale",
        "Throughput of all ranks",
        "Throughput of each rank",
        "Throughput of each rank while busy",
        "Where the time goes",
    ];
    for chart in charts {
        assert!(html.contains(&format!("<figcaption>{chart}")), "{chart}");
    }
    let words = [
        "<html lang=\"en\">",
        ">finished</span>",
        "test accuracy",
        "93.41 %",
        "3.71 ×",
        "What the profiler found",
        "rank 2 is slow",
        "<th scope=\"row\">airplane</th>",
        "cat for dog (62)",
        "time to first step",
        "NVIDIA H100",
        "layer1.0.Basic.conv1",
        "1.11 GFLOP",
        "kind = &quot;resnet&quot;",
        "prefers-color-scheme: dark",
    ];
    for words in words {
        assert!(html.contains(words), "{words}");
    }
    assert!(!html.contains("no data"));
    for outside in ["http:", "https:", "url(", "@import", " src=", " href="] {
        assert!(!html.contains(outside), "the report asks for something outside itself: {outside}");
    }
    let names = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name());
    assert!(names.into_iter().all(|name| !name.to_string_lossy().contains("partial")));
}

#[test]
fn nothing_from_outside_becomes_markup() {
    let evil = "<script>alert('1')</script> & \"x\"";
    let value = || {
        Some(serde_json::json!({ evil: evil, "class_names": [evil], "confusion_matrix": [[1]] }))
    };
    let mut rows = sample::rows(1, 50);
    rows[0].figures.push((evil.to_string(), 1.0));
    let input = Input {
        standing: Standing::AsItsFilesTell,
        name: evil.to_string(),
        rows,
        config: Some(evil.to_string()),
        summary: value(),
        environment: value(),
        model: Some(serde_json::json!({ "layers": [{ "path": evil, "kind": evil }] })),
        verdict: Some(serde_json::json!({ "findings": [{ "text": evil }] })),
    };
    let html = html::render(&input);
    assert_well_formed(&html);
    assert!(!html.contains("<script>alert") && html.matches("<script>").count() == 1);
    assert!(
        html.contains(
            "<h1>&lt;script&gt;alert(&#39;1&#39;)&lt;/script&gt; &amp; &quot;x&quot;</h1>"
        )
    );
}

#[test]
fn missing_files_leave_their_sections_out() {
    let folder = tempfile::tempdir().unwrap();
    let text =
        std::fs::read_to_string(html::write(folder.path(), Standing::AsItsFilesTell).unwrap())
            .unwrap();
    assert_well_formed(&text);
    assert!(text.contains(">running</span>") && text.contains("no figures yet"));
    for part in ["<figure", "<table", "<pre", "class=\"card\"", "<h2"] {
        assert!(!text.contains(part), "{part}");
    }
    let line = sample::rows(1, 50)[0].to_line().unwrap();
    std::fs::write(folder.path().join("metrics.jsonl"), format!("{line}{}", &line[..30])).unwrap();
    let text =
        std::fs::read_to_string(html::write(folder.path(), Standing::AsItsFilesTell).unwrap())
            .unwrap();
    assert!(
        text.contains("<figcaption>Loss</figcaption>") && !text.contains("no data"),
        "a run of one row"
    );
    std::fs::write(folder.path().join("metrics.jsonl"), format!("nonsense\n{line}")).unwrap();
    let error = html::write(folder.path(), Standing::AsItsFilesTell).unwrap_err().to_string();
    assert!(error.contains("line 1 is not a row"), "{error}");
}

#[test]
fn a_loss_that_is_not_a_number_is_shown() {
    let mut rows = sample::rows(2, 20);
    let lost = |row: &mut Row| row.figures.iter_mut().for_each(|figure| figure.1 = f64::NAN);
    rows.iter_mut().skip(20).for_each(lost);
    let html = html::render(&Input { rows, ..Input::default() });
    assert_well_formed(&html);
    let loss = html
        .split("<figcaption>Loss</figcaption>")
        .nth(1)
        .unwrap()
        .split("</figure>")
        .next()
        .unwrap();
    assert!(loss.contains("class=\"lost c0\"") && !loss.contains("NaN"), "{loss}");
    assert!(html.contains("<div class=\"value\">NaN</div>"), "the card says so");
}

#[test]
fn a_huge_run_is_rendered_fast_and_small() {
    let rows = sample::rows(257, 1);
    assert!(rows.len() > 100_000);
    let input = Input { rows, ..Input::default() };
    let (html, time) = (0..3)
        .map(|_| {
            let start = Instant::now();
            (html::render(&input), start.elapsed())
        })
        .min_by_key(|(_, time)| *time)
        .unwrap();
    assert!(html.len() < 2_000_000, "{} bytes", html.len());
    // Other tests share the machine.
    assert!(time < Duration::from_secs(1), "{time:?}");
}

#[test]
fn a_run_of_one_rank_without_validation_has_its_charts() {
    let mut rows = sample::rows(1, 10);
    rows.retain(|row| row.phase == Phase::Train);
    rows.iter_mut().for_each(|row| row.ranks.truncate(1));
    let html = html::render(&Input { rows, ..Input::default() });
    assert!(html.contains("<figcaption>Throughput while busy</figcaption>"));
    assert!(!html.contains("Throughput of each rank") && !html.contains(">validation</text>"));
}

/// `cargo test -p bonfire-report --test report -- --ignored` writes one to look at.
#[test]
#[ignore = "writes a sample"]
fn write_a_sample() {
    let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("digits-20260131-120000");
    sample::write(&folder);
    println!("{}", html::write(&folder, Standing::AsItsFilesTell).unwrap().display());
}
