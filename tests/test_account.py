"""What W&B's service is asked; what it has of a run: tests/test_history.py."""

import pytest
import wandb

from ablate.account import default_entity, log_in
from ablate.errors import ConfigError


@pytest.mark.parametrize("answer", [False, wandb.errors.UsageError("No API key configured")])
def test_runs_that_are_to_go_to_wandb_need_a_key_before_any_starts(monkeypatch, answer):
    def login():
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(wandb, "login", login)
    log_in("offline")
    with pytest.raises(ConfigError, match=r"tracking\.mode='online'.*key"):
        log_in("online")


def test_an_account_without_a_default_entity_is_told_to_name_one(monkeypatch):
    monkeypatch.setattr(wandb, "login", lambda: True)
    for entity in ("team", None):
        monkeypatch.setattr(wandb, "Api", lambda entity=entity: type("Api", (), {"default_entity": entity}))
        if entity:
            assert default_entity() == "team"
        else:
            with pytest.raises(ConfigError, match=r"tracking\.entity.*must be named"):
                default_entity()
