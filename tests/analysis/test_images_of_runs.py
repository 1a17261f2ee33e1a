"""Test images of a run whose data set has changed since."""

import numpy as np
import pytest

from attn_cnn_jax.analysis.test_images import in_classes_of
from attn_cnn_jax.config import attention_config
from attn_cnn_jax.data.sets import Dataset, Spec, Split, fingerprint
from attn_cnn_jax.errors import UserError


def data(*names):
    labels = np.arange(len(names), dtype=np.int32)
    split = Split(np.zeros((len(names), 8, 8, 1), np.uint8), labels)
    return Dataset(split, split, Spec("folder", (8, 8, 1), len(names), (0.5,), (0.2,), names))


def test_labels_are_those_of_the_run_where_classes_are_missing_and_new_ones_are_refused():
    """A class that is gone moves the labels of all after it; a configuration may name the same data otherwise."""
    config, was = attention_config(num_classes=3), fingerprint(data("cat", "dog", "owl"))
    config.dataset.update({"name": "folder", "class_names": ("cat", "dog", "owl")})
    for names, labels in ((("cat", "owl"), [0, 2]), (("owl", "cat", "dog"), [2, 0, 1])):
        for trained_on in (None, fingerprint(data("cat"))):
            found = in_classes_of(config, trained_on, data(*names))
            assert found.test.labels.tolist() == found.train.labels.tolist() == labels
            assert (found.spec.class_names, found.spec.num_classes) == (("cat", "dog", "owl"), 3)
    assert in_classes_of(config, was, data("a", "b", "c")).test.labels.tolist() == [0, 1, 2]
    for names in (("cat", "dog", "owl", "zebra"), ("cat", "owl", "zebra"), ("cat", "zebra")):
        with pytest.raises(UserError, match="zebra; of the run they are cat, dog, owl"):
            in_classes_of(config, fingerprint(data("cat")), data(*names))
    config.dataset.class_names = ()
    assert in_classes_of(config, None, data("cat", "owl")).spec.class_names == ("cat", "owl")
    with pytest.raises(UserError, match="of the run they are 3"):
        in_classes_of(config, None, data("a", "b", "c", "d"))
