"""Every test is ``unit`` or ``integration``, by where it lives; a test in a place that is not listed is an error.

``unit``: fast, in one process, no servers; ``pytest -m unit`` takes under a minute on two cores. ``integration``: whole
runs, the command line, other processes, browsers, and single tests that take seconds. The most specific entry decides;
``slow`` or ``integration`` on a test itself, or its use of a browser, make it an integration test.
"""

from __future__ import annotations

from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]

UNIT = (
    "config",
    "cost",
    "data",
    "evaluation",
    "federated",
    "lowbit",
    "models",
    "quant",
    "ssl",
    "studies/bench/test_timing.py",
    "studies/theory",
    "test_accelerators.py",
    "test_architecture.py",
    "test_dockerfile.py",
    "test_marks.py",
    "test_messages.py",
    "test_mutants.py",
    "test_plotting.py",
    "test_supply_chain.py",
)
INTEGRATION = (
    "api",
    "arm",
    "cli",
    "compat",
    "cost/test_ledger.py::test_bytes_are_those_of_a_run",
    "cost/test_ledger.py::test_sizes_are_those_of_the_run",
    "cost/test_planner.py",
    "data/test_dataset_registry.py::test_real_digits",
    "data/test_scenes.py::test_a_small_network_with_labels_succeeds",
    "deploy",
    "device",
    "engines",
    "evaluation/test_probe.py::test_separable_data_is_solved",
    "examples",
    "federated/test_algorithm_template.py",
    "federated/test_algorithms.py",
    "federated/test_client.py",
    "federated/test_clusters.py",
    "federated/test_context.py",
    "federated/test_embedding.py",
    "federated/test_fed_seq.py",
    "federated/test_fltrust.py",
    "federated/test_operators.py",
    "federated/test_optimizers.py::test_a_checkpoint_holds_all_that_the_next_round_needs",
    "federated/test_optimizers.py::test_around_any_algorithm",
    "federated/test_optimizers.py::test_fedexp_extends_the_step_of_an_algorithm_that_averages",
    "federated/test_optimizers.py::test_resumed_bit_for_bit",
    "federated/test_optimizers.py::test_the_average_is_what_is_handed_out",
    "federated/test_pretend_gpu.py",
    "federated/test_robust.py::test_around_any_algorithm_that_averages",
    "federated/test_robust.py::test_max_share_reaches_a_run",
    "federated/test_robust.py::test_measured_statistics_are_the_buffers_alone",
    "federated/test_updates.py::test_a_bad_upload_is_left_out_and_the_round_goes_on",
    "federated/test_updates.py::test_rejections_are_counted_in_the_run_and_bytes_are_the_buffers",
    "federated/test_updates.py::test_too_few_valid_uploads_end_in_one_line_and_the_run_can_go_on",
    "lowbit/test_codes_only.py::test_at_every_step_a_layer_holds_at_most_2_to_the_s_values_and_no_float_copy",
    "lowbit/test_container.py::test_same_model_same_bytes_in_every_process",
    "lowbit/test_container_hostile.py::test_claims_of_terabytes_allocate_nothing",
    "lowbit/test_optim.py::test_scale_ratchet_round_policy_keeps_the_spread_where_max_inflates_it",
    "lowbit/test_optim.py::test_zero_gradient_changes_no_code_in_1000_stochastic_steps",
    "maker",
    "quant/test_compand.py::test_zero_gradient_changes_no_code_in_1000_stochastic_steps",
    "quant/test_kernels.py::test_bad_environment_variable_is_a_clear_error",
    "quant/test_kernels.py::test_environment_variable",
    "quant/test_packing.py::test_more_than_2_to_the_24_elements",
    "reporting",
    "runs",
    "serve",
    "studies",
    "studies/theory/test_theory_checks.py::test_theory_json_keeps_its_contract",
    "studies/theory/test_theory_cli.py",
    "studies/theory/test_theory_lemma1.py::test_off_grid_slopes_are_minus_two",
    "test_docs.py",
    "test_files.py",
    "test_installed.py",
    "test_readme.py",
    "test_wheel.py",
)
"""Folders, files and tests, below ``tests``."""


def kind_of(path: str, test: str) -> str | None:
    """``unit`` or ``integration`` by the most specific entry for a test of a file; None if no entry covers it."""
    parts = path.split("/")
    for place in (f"{path}::{test}", *("/".join(parts[:n]) for n in range(len(parts), 0, -1))):
        if place in UNIT:
            return "unit"
        if place in INTEGRATION:
            return "integration"
    return None


def _mark(item: pytest.Item) -> None:
    path = item.path.relative_to(TESTS).as_posix()
    kind = kind_of(path, getattr(item, "originalname", None) or item.name)
    if kind is None:
        raise pytest.UsageError(f"tests/{path} is neither unit nor integration: list it in tests/support/marks.py")
    heavy = any(item.get_closest_marker(name) for name in ("integration", "slow"))
    if heavy or "browser" in getattr(item, "fixturenames", ()):
        kind = "integration"
    item.add_marker(kind)


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark a test as soon as it is found, before ``-m`` selects."""
    _mark(item)
