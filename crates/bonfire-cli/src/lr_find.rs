//! `bonfire lr-find`: the loss over rising learning rates, and the rate to begin with.

use crate::CliError;
use crate::args::LrFindArgs;
use crate::data::Data;
use crate::device::TrainDevice;
use crate::exit::Outcome;
use crate::output::print;
use crate::own_data::Images;
use crate::registry::{ModelConfig, Registry};
use crate::train::Recipe;
use crate::weights::begin_with;
use crate::worker::init_model;
use bonfire_comm::ProcessGroup;
use bonfire_report::chart::{Chart, Mark, Scale, Series, Theme};
use bonfire_trainer::config::{LrScaling, Plan};
use bonfire_trainer::{LrCurve, LrFinder, TrainerConfig, limit_threads};

pub(crate) fn find(registry: &Registry, args: &LrFindArgs) -> Result<Outcome, CliError> {
    let recipe = Recipe::load(registry, &args.config, &args.overrides, 1)?;
    limit_threads(1);
    let finder = LrFinder {
        min_lr: args.min_lr,
        max_lr: args.max_lr,
        num_training: args.num_training,
        ..LrFinder::default()
    };
    let curve = recipe.model.find_lr(&recipe.config, &recipe.plan, &recipe.images, &finder)?;
    if let Some(path) = &args.plot {
        let svg = chart(&recipe.plan.name, &curve).to_svg(Theme::StandAlone);
        std::fs::write(path, svg).map_err(|source| {
            let path = path.clone();
            CliError::Io { action: "writing", path, source }
        })?;
    }
    print(tell(&curve, &recipe.plan))?;
    Ok(Outcome::Done)
}

/// Tries rates on one kind of model.
pub(crate) fn find_with<C: ModelConfig>(
    config: &C,
    plan: &Plan,
    images: &Images,
    finder: &LrFinder,
) -> Result<LrCurve, CliError> {
    let device = TrainDevice::open(plan, 0)?.configured(plan.precision.mode)?;
    let data = Data::open(plan, images, &device)?;
    let model = begin_with(config, init_model(config, plan, &data, &device)?, plan)?;
    Ok(finder.run(TrainerConfig::from_plan(plan), &ProcessGroup::single(), model, &data.train)?)
}

fn tell(curve: &LrCurve, plan: &Plan) -> String {
    let mut text = String::from("learning_rate,loss,smoothed\n");
    for ((lr, loss), (_, smoothed)) in curve.points.iter().zip(curve.smoothed()) {
        text.push_str(&format!("{lr:.3e},{loss:.6},{smoothed:.6}\n"));
    }
    let samples = plan.data.global_batch_size;
    let scaling = plan.schedule.scaling;
    text.push_str(&match curve.suggestion() {
        Some(lr) => format!(
            "# suggestion: optimizer.lr = {:.2e}{} for {samples} images a step (the recipe has {})\n",
            lr / scaling.factor(),
            match scaling {
                LrScaling::None => ",".to_owned(),
                scaling => format!(", which becomes {lr:.2e} ({scaling}),"),
            },
            plan.optimizer.lr()
        ),
        None => "# no suggestion: the loss falls nowhere; try --max-lr above, more --num-training, or look at \
                 the data\n"
            .to_owned(),
    });
    text
}

fn chart(name: &str, curve: &LrCurve) -> Chart {
    let mark = |lr: f64| Mark { x: lr, label: format!("{lr:.2e}") };
    Chart {
        title: format!("{name}: loss over the learning rate"),
        x_label: "learning rate".into(),
        y_label: "loss".into(),
        x_scale: Scale::Log,
        series: vec![
            Series::points("loss", curve.points.clone()),
            Series::line("smoothed", curve.smoothed()),
        ],
        marks: curve.suggestion().map(mark).into_iter().collect(),
        ..Chart::default()
    }
}
