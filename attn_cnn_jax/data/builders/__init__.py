"""The data sets, as builders of tensorflow-datasets."""
