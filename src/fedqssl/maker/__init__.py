"""From a finished run to files for its devices: classifiers, model cards, pictures of what a classifier confuses."""
