//! Figures of classifiers that batches and ranks add up to exactly; knows neither Burn nor ranks.
