//! The `bonfire` program as a library, so that a program with models and data sets of its own gets
//! the whole command line:
//!
//! ```ignore
//! fn main() -> std::process::ExitCode {
//!     let registry = Registry::builtin().with_model::<MyNetConfig>("my_net");
//!     bonfire_cli::run(registry.with_data::<MyImages>("my_images"))
//! }
//! ```

mod args;
mod batch_find;
mod bench;
mod checkpoints;
mod classifier;
mod configuration;
mod data;
mod data_sets;
mod device;
mod dry_run;
mod environment;
mod error;
mod evaluate;
mod exit;
mod flight;
mod followers;
mod interrupt;
mod launch_args;
mod launcher;
mod lr_find;
mod model_folder;
mod new_package;
mod output;
mod own_data;
mod package_name;
mod pictures;
mod plot;
mod predict;
mod problems;
mod process;
mod registry;
mod report;
mod results;
mod run_lock;
mod shell;
mod skipped;
mod survey;
mod train;
mod voice;
mod weights;
mod worker;

pub use data_sets::FetchError;
pub use error::CliError;
pub use own_data::DataConfig;
pub use registry::{ModelConfig, Registry};

use clap::Parser;
use std::process::ExitCode;

/// Runs the command line of this process with the models and data sets of `registry`.
///
/// Call it first thing in `main`: it sets the number of threads before anything uses them.
pub fn run(registry: Registry) -> ExitCode {
    process::note_start();
    device::prepare();
    bonfire_trainer::keep_freed_memory();
    bonfire_trainer::note_panics();
    let args = args::Args::parse();
    voice::start(args.voice);
    let result = match args.command {
        args::Command::Analyze(args) => flight::analyze_dumps(&args),
        args::Command::Train(args) => train::train(&registry, &args),
        args::Command::Launch(args) => launcher::launch_program(&args),
        args::Command::Predict(args) => predict::predict(&registry, &args),
        args::Command::Evaluate(args) => evaluate::evaluate(&registry, &args),
        args::Command::Weights(args::Weights::Import(args)) => weights::import(&registry, &args),
        args::Command::Weights(args::Weights::Export(args)) => weights::export(&registry, &args),
        args::Command::New(args) => new_package::new_package(&args),
        args::Command::Bench(args::Bench::Collectives(args)) => bench::collectives(&args),
        args::Command::Checkpoint(command) => checkpoints::run(&command),
        args::Command::Data(command) => data_sets::run(&command),
        args::Command::Config(command) => configuration::run(&registry, &command),
        args::Command::LrFind(args) => lr_find::find(&registry, &args),
        args::Command::BatchFind(args) => batch_find::find(&registry, &args),
        args::Command::Completions(args) => shell::completions(&args),
        args::Command::Man(args) => shell::man(&args),
    };
    exit::code(result)
}
