from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from promptiter.errors import SetupError
from promptiter.tasks.refine.loss import LossWeights, compute_loss
from promptiter.tasks.refine.records import Defect, GateRejection, MetricValue, RunRecord


def record(
    *values: float, defects: tuple[str, ...] = (), rejections: int = 0, weights: tuple[float, ...] = ()
) -> RunRecord:
    given_weights = weights or (1.0,) * len(values)
    return RunRecord(
        run_id="r",
        task="t",
        metrics=tuple(
            MetricValue(name=f"m{at}", value=value, weight=weight)
            for at, (value, weight) in enumerate(zip(values, given_weights, strict=True))
        ),
        defects=tuple(Defect(description=f"d{at}", severity=severity) for at, severity in enumerate(defects)),
        rejections=tuple(GateRejection(gate=f"g{at}") for at in range(rejections)),
    )


def test_the_loss_is_what_the_metrics_miss_plus_what_is_open() -> None:
    assert compute_loss(record(1.0)) == 0.0
    assert compute_loss(record(0.5, 1.0)) == 0.25
    assert compute_loss(record(0.5, 1.0, weights=(3.0, 1.0))) == 0.375
    assert compute_loss(record(0.8, defects=("critical", "high", "low"))) == pytest.approx(0.2 + 0.16)
    assert compute_loss(record(0.8, rejections=2)) == pytest.approx(0.3)
    assert compute_loss(record(defects=("medium",))) == 0.03


@pytest.mark.parametrize(
    ("severity", "weight"), [("P0", 0.1), ("Major", 0.05), ("", 0.03), ("weird", 0.03), ("nit", 0.01)]
)
def test_severities_have_several_names(severity: str, weight: float) -> None:
    assert LossWeights().of_severity(severity) == weight


def test_the_weights_can_be_configured() -> None:
    weights = LossWeights(defects={"high": 0.5}, rejection=0.2)
    assert compute_loss(record(defects=("high", "low"), rejections=1), weights) == pytest.approx(0.71)
    with pytest.raises(SetupError, match="unknown severity 'hihg'"):
        LossWeights(defects={"hihg": 0.1})
    with pytest.raises(SetupError, match="weight of the loss is -1"):
        LossWeights(rejection=-1)


@given(
    st.lists(st.floats(min_value=-2, max_value=3), max_size=4),
    st.lists(st.sampled_from(["critical", "high", "?"]), max_size=30),
    st.integers(min_value=0, max_value=5),
)
def test_the_loss_is_between_0_and_1(values: list[float], defects: list[str], rejections: int) -> None:
    assert 0.0 <= compute_loss(record(*values, defects=tuple(defects), rejections=rejections)) <= 1.0
