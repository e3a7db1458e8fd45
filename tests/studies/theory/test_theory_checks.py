"""The checks as a whole: contract of theory.json, summary, figures, controls that must fail."""

import json
import sys
from pathlib import Path

import pytest

from fedqssl.studies.theory import Settings, claim_folder, run_checks, write


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = claim_folder(tmp_path_factory.mktemp("theory") / "all", overwrite=False)
    write(out, run_checks(["lemma1", "theorem1", "theorem2"], Settings(12, 3, None, (3, 8), 30, 2)))
    return out


@pytest.fixture(scope="module")
def found(folder: Path) -> dict:
    results: dict = json.loads((folder / "theory.json").read_text())
    return results


def test_theory_json_keeps_its_contract(found: dict) -> None:
    assert set(found) == {"lemma1", "theorem1", "theorem2", "settings"}
    assert {"lhs", "rhs", "rhs_printed", "ratio", "holds", "holds_printed", "control_fails"} <= set(found["theorem1"])
    one = found["theorem1"]
    assert one["ratio"] == pytest.approx(one["lhs"] / one["rhs"]) and one["holds"] == all(
        c["holds"] for c in one["cases"].values() if c["asserted"]
    )
    assert {"r_min", "r_mean", "bound_min", "spread", "holds", "control_fails"} <= set(found["theorem2"])
    assert found["settings"]["rank"] == 3 and found["settings"]["seeds"] == 2


def test_summary_has_every_claim_and_figure(folder: Path, found: dict) -> None:
    text = (folder / "summary.md").read_text()
    assert text.count("| yes |") + text.count("| **no** |") == sum(len(p.get("claims", ())) for p in found.values())
    for figure in folder.glob("*.png"):
        assert f"({figure.name})" in text


def test_nearest_rounding_with_lost_steps_fails_theorem1(found: dict) -> None:
    control = found["theorem1"]["control"]
    assert found["theorem1"]["control_fails"] and control["largest_step_in_cells"] < 0.5
    assert control["lhs_last"] == pytest.approx(control["lhs_first"]) and control["lhs_last"] > control["rhs_last"]
    assert control["stochastic_lhs_last"] < 0.7 * control["lhs_first"]
    assert found["theorem1"]["claims"]["control_counterpart"]["holds"]


def test_theorem1_holds_in_its_proofs_form_only(found: dict) -> None:
    one = found["theorem1"]
    assert one["holds"] and not one["holds_printed"] and one["smoothness"]["holds"]
    assert not one["claims"]["bound_vanishes_with_sqrt_steps"]["holds"]
    full = [c["rhs"][-1] for n, c in one["cases"].items() if n.startswith("full") and c["steps"] == "constant"]
    low, high = (one["cases"][f"{b} bits, constant"]["rhs"][-1] for b in (3, 8))
    assert low > high > full[0]


def test_theorem2_holds_and_its_control_fails(found: dict) -> None:
    two = found["theorem2"]
    assert two["holds"] and two["control_fails"] and two["warning"] is None
    assert two["control"]["r_min"] <= two["control"]["m_over_n"]
    assert 0 <= two["bound_min"] <= two["r_min"] <= two["r_mean"] <= 1


def test_self_supervised_clients_are_evener(found: dict) -> None:
    last = found["theorem2"]["heterogeneity"][-1]
    assert last["self_supervised"]["mean"] < 0.3 < last["supervised"]["mean"]


def test_covariance_is_shown_beside_the_printed_one(found: dict) -> None:
    cov = found["theorem2"]["covariance"]
    assert cov["deviation_expected"] < 0.1 < 0.5 < cov["deviation_printed"]


def test_without_matplotlib_figures_are_skipped_with_a_word(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    said: list[str] = []
    write(tmp_path, json.loads((folder / "theory.json").read_text()), said.append)
    assert said == ["no figures: matplotlib is not installed; pip install 'fedqssl[plots]'"]
    assert not list(tmp_path.glob("*.png")) and "![" not in (tmp_path / "summary.md").read_text()
