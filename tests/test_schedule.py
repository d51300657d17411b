import pytest

from ablate.schedule import learning_rate


@pytest.mark.parametrize(
    ("step", "d_model", "expected"),
    [
        (1, 512, 1.7469e-7),  # M9
        (4000, 512, 6.98771e-4),
        (100_000, 512, 1.39754e-4),
        (4000, 256, 9.882e-4),
        (4000, 1024, 4.941e-4),
    ],
)
def test_learning_rate_is_the_papers(step: int, d_model: int, expected: float):
    assert learning_rate(step, d_model, warmup_steps=4000, lr_scale=1.0) == pytest.approx(expected, rel=5e-5)


def test_the_peak_is_at_the_end_of_the_warmup():
    rates = [learning_rate(step, 7, warmup_steps=5, lr_scale=1.0) for step in range(1, 12)]
    assert rates.index(max(rates)) == 5 - 1
    assert len(set(rates)) == len(rates)


def test_warmup_is_linear_and_lr_scale_a_factor():
    first = learning_rate(1, 16, warmup_steps=10, lr_scale=1.0)
    assert learning_rate(7, 16, warmup_steps=10, lr_scale=1.0) == pytest.approx(7 * first)
    assert learning_rate(7, 16, warmup_steps=10, lr_scale=2.5) == pytest.approx(2.5 * 7 * first)


@pytest.mark.parametrize("step", [0, -1])
def test_a_step_before_the_first_is_refused(step: int):
    with pytest.raises(ValueError, match=f"step={step}"):
        learning_rate(step, 512, warmup_steps=4000, lr_scale=1.0)
