use super::*;
use bonfire_comm::HostBuffer;
use bonfire_tensor::state::{HostTensor, Scalar};
use std::collections::BTreeMap;

fn checkpoint(step: u64) -> Checkpoint {
    let mut state = State::default();
    let tensor = |values: Vec<f32>| HostTensor { shape: vec![values.len()], data: values.into() };
    state.tensors.insert("model.layers.0.weight".into(), tensor(vec![1.0, -2.5, step as f32]));
    state.tensors.insert("optimizer.m/layers.0.weight".into(), tensor(vec![0.0; 3]));
    let half = HostBuffer::from(vec![0.1f64, 1e-300]);
    state.tensors.insert("callbacks.ema".into(), HostTensor { shape: vec![2, 1], data: half });
    state.scalars.insert("position.step".into(), Scalar::Uint(step));
    state.scalars.insert("best".into(), Scalar::Float(0.1 + 0.2));
    state.scalars.insert("nan".into(), Scalar::Text("x".into()));
    let manifest = Manifest {
        format: Manifest::FORMAT,
        epoch: 1,
        step,
        serial: 0,
        world_size: 2,
        configuration: BTreeMap::from([("seed".to_string(), "3".to_string())]),
        files: Vec::new(),
        checksum: String::new(),
    };
    Checkpoint { manifest, state }
}

fn by_step(folder: &Path) -> Vec<PathBuf> {
    list(folder).unwrap().into_iter().map(|entry| entry.path).collect()
}

#[test]
fn what_is_saved_is_loaded_bit_for_bit() {
    let folder = tempfile::tempdir().unwrap();
    let saved = checkpoint(7);
    let place = save(folder.path(), saved.clone(), Keep::last(3)).unwrap();
    for path in [place.as_path(), folder.path()] {
        let loaded = load(path).unwrap();
        assert_eq!(loaded.state, saved.state);
        assert_eq!(loaded.manifest.configuration, saved.manifest.configuration);
    }
}

#[test]
fn only_the_newest_are_kept_and_latest_points_at_the_last() {
    let folder = tempfile::tempdir().unwrap();
    for step in [1, 2, 10, 11, 12] {
        save(folder.path(), checkpoint(step), Keep::last(2)).unwrap();
    }
    let names: Vec<_> = by_step(folder.path())
        .iter()
        .map(|path| path.file_name().unwrap().to_string_lossy().into_owned())
        .collect();
    assert_eq!(names, ["step-00000011", "step-00000012"]);
    assert_eq!(load(folder.path()).unwrap().manifest.step, 12);
}

#[test]
fn a_damaged_file_is_named_and_an_incomplete_folder_is_no_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let place = save(folder.path(), checkpoint(3), Keep::last(3)).unwrap();
    let file = place.join(TENSORS);
    let mut bytes = std::fs::read(&file).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&file, &bytes).unwrap();
    let error = load(&place).unwrap_err().to_string();
    assert!(error.contains("state.safetensors") && error.contains("checksum"), "{error}");
    bytes.pop();
    std::fs::write(&file, &bytes).unwrap();
    assert!(load(&place).unwrap_err().to_string().contains("size"));
    std::fs::remove_file(place.join(Manifest::FILE)).unwrap();
    let error = load(folder.path()).unwrap_err().to_string();
    assert!(error.contains("manifest.json"), "a checkpoint without its manifest is told: {error}");
    remove_folder(&place).unwrap();
    assert!(matches!(load(folder.path()), Err(CheckpointError::NotFound { .. })));
}

#[test]
fn a_failed_save_leaves_the_former_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    save(folder.path(), checkpoint(1), Keep::last(3)).unwrap();
    // What an interrupted save leaves: a folder aside without a manifest.
    std::fs::create_dir(folder.path().join(".step-00000002.partial")).unwrap();
    assert_eq!(load(folder.path()).unwrap().manifest.step, 1);
    save(folder.path(), checkpoint(2), Keep::last(3)).unwrap();
    assert_eq!(load(folder.path()).unwrap().manifest.step, 2);
}

#[test]
fn saving_the_same_step_again_replaces_it() {
    let folder = tempfile::tempdir().unwrap();
    save(folder.path(), checkpoint(5), Keep::last(1)).unwrap();
    let mut again = checkpoint(5);
    again.state.scalars.insert("best".into(), Scalar::Float(2.0));
    save(folder.path(), again.clone(), Keep::last(1)).unwrap();
    assert_eq!(load(folder.path()).unwrap().state, again.state);
    let left: Vec<_> = std::fs::read_dir(folder.path()).unwrap().flatten().collect();
    assert_eq!(left.len(), 2, "a checkpoint and the pointer: {left:?}");
}

#[test]
fn checkpoints_of_an_earlier_run_go_before_the_one_just_saved() {
    let folder = tempfile::tempdir().unwrap();
    for step in [80, 90, 10, 20] {
        save(folder.path(), checkpoint(step), Keep::last(2)).unwrap();
        assert_eq!(load(folder.path()).unwrap().manifest.step, step);
    }
    let steps: Vec<_> =
        by_step(folder.path()).iter().map(|path| Manifest::read(path).unwrap().step).collect();
    assert_eq!(steps, [10, 20]);
}

#[test]
fn a_checkpoint_of_format_1_is_read() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/checkpoints/format-1");
    let loaded = load(&folder).unwrap();
    assert_eq!((loaded.manifest.format, loaded.manifest.step), (Manifest::FORMAT, 35));
    let scalar = |name: &str| loaded.state.scalars.get(name).cloned();
    assert_eq!(scalar("position.scheduled"), Some(Scalar::Uint(35)));
    // 30 batches of an epoch, one a step.
    assert_eq!(scalar("position.steps_per_epoch"), Some(Scalar::Uint(30)));
    assert!(loaded.state.tensors.contains_key("model.layers.0.weight"));
    let newer = Manifest { format: Manifest::FORMAT + 1, ..loaded.manifest };
    let bytes = newer.encode().unwrap();
    let error = Manifest::decode(&bytes, Path::new("m")).unwrap_err().to_string();
    assert!(error.contains("format 3 is not one of 1 to 2"), "{error}");
}

#[test]
fn a_flipped_byte_anywhere_is_found() {
    let folder = tempfile::tempdir().unwrap();
    let place = save(folder.path(), checkpoint(3), Keep::last(3)).unwrap();
    for name in [MODEL, TENSORS, SCALARS, Manifest::FILE] {
        let sound = std::fs::read(place.join(name)).unwrap();
        for (position, bit) in (0..sound.len()).flat_map(|position| [(position, 1), (position, 16)])
        {
            let mut bytes = sound.clone();
            bytes[position] ^= bit;
            std::fs::write(place.join(name), &bytes).unwrap();
            assert!(load(&place).is_err(), "{name}: byte {position}");
        }
        std::fs::write(place.join(name), &sound).unwrap();
    }
}

#[test]
fn a_damaged_checkpoint_gives_way_to_the_one_before_it_whichever_file_it_is() {
    for name in [MODEL, TENSORS, SCALARS, Manifest::FILE] {
        let folder = tempfile::tempdir().unwrap();
        save(folder.path(), checkpoint(1), Keep::last(3)).unwrap();
        let newest = save(folder.path(), checkpoint(2), Keep::last(3)).unwrap();
        let mut bytes = std::fs::read(newest.join(name)).unwrap();
        bytes.truncate(bytes.len() / 2);
        std::fs::write(newest.join(name), bytes).unwrap();
        assert_eq!(load(folder.path()).unwrap().manifest.step, 1, "{name}");
        assert_eq!(list(folder.path()).unwrap().len(), 2);
    }
}

#[test]
fn old_checkpoints_and_the_remains_of_saves_are_pruned_but_the_best_is_not() {
    let folder = tempfile::tempdir().unwrap();
    for step in 1..=4 {
        save(folder.path(), checkpoint(step), Keep { last: 9, best: step == 2 }).unwrap();
    }
    std::fs::create_dir(folder.path().join(".step-00000005.partial")).unwrap();
    let would = prune(folder.path(), 1, true).unwrap();
    assert_eq!(list(folder.path()).unwrap().len(), 4, "a dry run removes nothing");
    let gone = prune(folder.path(), 1, false).unwrap();
    assert_eq!(gone, would);
    let names = gone.iter().map(|path| path.file_name().unwrap().to_string_lossy());
    let names: Vec<_> = names.collect();
    assert_eq!(names, [".step-00000005.partial", "step-00000001", "step-00000003"]);
    let left = list(folder.path()).unwrap();
    let left: Vec<_> = left.iter().map(|entry| (entry.best, entry.latest)).collect();
    assert_eq!(left, [(true, false), (false, true)]);
}

#[test]
fn a_mean_of_models_is_that_of_their_numbers() {
    let folder = tempfile::tempdir().unwrap();
    let paths: Vec<_> =
        [1, 2, 6].map(|step| save(folder.path(), checkpoint(step), Keep::last(9)).unwrap()).into();
    let mean = mean_of_models(&paths).unwrap();
    let weight = mean["layers.0.weight"].data.as_slice::<f32>().unwrap();
    assert_eq!(weight, [1.0, -2.5, 3.0]);
    let mut other = checkpoint(7);
    let renamed = other.state.tensors.remove("model.layers.0.weight").unwrap();
    other.state.tensors.insert("model.layers.1.weight".to_string(), renamed);
    let other = save(folder.path(), other, Keep::last(9)).unwrap();
    let error = mean_of_models(&[paths[0].clone(), other]).unwrap_err().to_string();
    assert!(error.contains("step-00000007") && error.contains("other tensors"), "{error}");
}

#[test]
fn a_model_that_is_lost_does_not_push_out_those_that_are_not() {
    let folder = tempfile::tempdir().unwrap();
    save(folder.path(), checkpoint(1), Keep::last(1)).unwrap();
    let mut lost = checkpoint(2);
    let data = HostBuffer::from(vec![1.0f32, f32::NAN]);
    lost.state.tensors.insert("model.bias".into(), HostTensor { shape: vec![2], data });
    let error = save(folder.path(), lost, Keep::last(1)).unwrap_err().to_string();
    assert!(error.contains("\"bias\"") && error.contains("step 2"), "{error}");
    assert_eq!(load(folder.path()).unwrap().manifest.step, 1);
}

#[test]
fn the_newest_is_the_one_saved_last_whatever_the_clock_says() {
    let folder = tempfile::tempdir().unwrap();
    for step in [80, 10, 20] {
        save(folder.path(), checkpoint(step), Keep::last(9)).unwrap();
    }
    let future = std::time::SystemTime::now() + std::time::Duration::from_secs(9999);
    let manifest = folder.path().join("step-00000080").join(Manifest::FILE);
    std::fs::File::options().write(true).open(manifest).unwrap().set_modified(future).unwrap();
    std::fs::write(folder.path().join(LATEST), "step-00000080").unwrap();
    assert_eq!(load(folder.path()).unwrap().manifest.step, 20);
}

#[test]
fn what_interrupted_saves_and_removals_have_left_is_tidied() {
    let folder = tempfile::tempdir().unwrap();
    save(folder.path(), checkpoint(1), Keep::last(9)).unwrap();
    for name in [".step-00000002.partial", ".step-00000003.removed"] {
        std::fs::create_dir(folder.path().join(name)).unwrap();
    }
    tidy(folder.path()).unwrap();
    let left = std::fs::read_dir(folder.path()).unwrap().count();
    assert_eq!(left, 2, "a checkpoint and the pointer");
}

#[test]
fn a_best_that_the_run_has_not_come_to_is_forgotten() {
    let folder = tempfile::tempdir().unwrap();
    save(folder.path(), checkpoint(5), Keep { last: 9, best: true }).unwrap();
    forget_best_after(folder.path(), 5).unwrap();
    assert!(list(folder.path()).unwrap()[0].best);
    // Another state of the same step is not the best any more.
    save(folder.path(), checkpoint(5), Keep::last(9)).unwrap();
    assert!(!list(folder.path()).unwrap()[0].best);
    save(folder.path(), checkpoint(7), Keep { last: 9, best: true }).unwrap();
    forget_best_after(folder.path(), 5).unwrap();
    assert!(!list(folder.path()).unwrap()[1].best);
}
