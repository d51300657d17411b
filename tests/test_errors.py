import pickle

from ablate.errors import NOT_SAID, ConfigError, nearest


def test_the_error_names_the_nearest_valid_name():
    assert nearest("dropuot", ["d_model", "dropout"]) == "did you mean 'dropout'? valid: d_model, dropout"
    assert nearest("zzz", ["d_model", "dropout"]) == "valid: d_model, dropout"


def test_an_error_names_field_value_source_and_what_is_allowed():
    said = str(ConfigError("model.d_k", 0, "must be at least 1", "row/mine"))
    assert said == "model.d_k=0 (from row/mine): must be at least 1"


def test_an_error_that_comes_from_another_process_says_the_same():
    for value in (None, 3, NOT_SAID):
        err = ConfigError("model.num_layers", value, "must be at least 1", "row/mine")
        again = pickle.loads(pickle.dumps(err))
        assert (type(again), str(again), again.field) == (ConfigError, str(err), "model.num_layers")
    unsaid = ConfigError("model.num_layers", NOT_SAID, "must be at least 1", "row/mine")
    assert str(pickle.loads(pickle.dumps(unsaid))) == "model.num_layers (from row/mine): must be at least 1"
