"""Apple's pfl-research (``pip install pfl``); two processes are its own, by ``torch.distributed.run``."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedqssl.studies.bench.throughput.workload import (
    BATCH,
    BEGIN,
    END,
    RATE,
    asked,
    say,
    simple_cnn,
)


def _model() -> nn.Module:
    from pfl.metrics import Weighted  # type: ignore[import-not-found]

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = simple_cnn()

        def forward(self, x: Tensor) -> Tensor:
            found: Tensor = self.inner(x.float() / 255)
            return found

        def loss(self, x: Tensor, y: Tensor, eval: bool = False) -> Tensor:
            self.eval() if eval else self.train()
            return F.cross_entropy(self(x), y)

        @torch.no_grad()
        def metrics(self, x: Tensor, y: Tensor, eval: bool = True) -> dict[str, Any]:
            return {"loss": Weighted(float(self.loss(x, y, eval)) * len(y), len(y))}

    return Network()


def main() -> None:
    """Run the workload."""
    from pfl.aggregate.simulate import SimulatedBackend  # type: ignore[import-not-found]
    from pfl.algorithm.base import NNAlgorithmParams  # type: ignore[import-not-found]
    from pfl.algorithm.federated_averaging import FederatedAveraging  # type: ignore[import-not-found]
    from pfl.callback.base import TrainingProcessCallback  # type: ignore[import-not-found]
    from pfl.data.dataset import Dataset  # type: ignore[import-not-found]
    from pfl.data.federated_dataset import FederatedDataset  # type: ignore[import-not-found]
    from pfl.data.sampling import get_user_sampler  # type: ignore[import-not-found]
    from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams  # type: ignore[import-not-found]
    from pfl.internal.ops.selector import get_framework_module  # type: ignore[import-not-found]
    from pfl.metrics import Metrics
    from pfl.model.pytorch import PyTorchModel  # type: ignore[import-not-found]

    job = asked()
    torch.manual_seed(0)
    np.random.seed(0)

    class Announce(TrainingProcessCallback):  # type: ignore[misc]
        def after_central_iteration(self, aggregate: Any, model: Any, *, central_iteration: int) -> tuple[bool, Any]:
            if get_framework_module().distributed.global_rank == 0 and central_iteration in (0, job.iterations):
                say(BEGIN if central_iteration == 0 else END)
            return False, Metrics()

    network = _model()
    model = PyTorchModel(
        model=network,
        local_optimizer_create=torch.optim.SGD,
        central_optimizer=torch.optim.SGD(network.parameters(), lr=1.0),
    )
    data = FederatedDataset(
        lambda user: Dataset(raw_data=[job.users[user].images, job.users[user].labels]),
        get_user_sampler("minimize_reuse", list(range(len(job.users)))),
    )
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=job.iterations + 1,
            evaluation_frequency=1 << 30,
            train_cohort_size=job.cohort,
            val_cohort_size=0,
        ),
        backend=SimulatedBackend(training_data=data, val_data=None),
        model=model,
        model_train_params=NNTrainHyperParams(local_num_epochs=1, local_learning_rate=RATE, local_batch_size=BATCH),
        model_eval_params=NNEvalHyperParams(local_batch_size=None),
        callbacks=[Announce()],
    )


if __name__ == "__main__":
    main()
