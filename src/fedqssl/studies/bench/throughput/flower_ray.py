"""Flower's simulation on Ray (extra: flower); PROCESSES is the number of cores that Ray gets, one for each client."""

from __future__ import annotations

import functools
from collections.abc import Iterable

from fedqssl.studies.bench.throughput.workload import BEGIN, END, Asked, asked, say, simple_cnn, train


@functools.lru_cache(maxsize=1)
def _here(*arguments: str) -> Asked:
    """The data, read once in every process of Ray."""
    return asked(arguments)


def main() -> None:
    """Run the workload."""
    from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp
    from flwr.serverapp.strategy import FedAvg
    from flwr.simulation import run_simulation

    job = asked()
    arguments = job.data, str(job.iterations), str(job.processes), str(job.bits)
    client, server = ClientApp(), ServerApp()

    @client.train()
    def fit(message: Message, context: Context) -> Message:
        model, users = simple_cnn(), _here(*arguments).users
        user = int(context.node_config["partition-id"])
        model.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
        train(model, users[user], user)
        metrics = MetricRecord({"num-examples": len(users[user].images)})
        content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
        return Message(content=content, reply_to=message)

    class Announced(FedAvg):
        def configure_train(self, server_round: int, *given: object) -> Iterable[Message]:
            if server_round == 2:
                say(BEGIN)
            return super().configure_train(server_round, *given)  # type: ignore[arg-type]

    @server.main()
    def run(grid: Grid, context: Context) -> None:
        share = job.cohort / len(job.users)
        strategy = Announced(
            fraction_train=share, fraction_evaluate=0.0, min_train_nodes=job.cohort, min_available_nodes=job.cohort
        )
        strategy.start(grid, ArrayRecord(simple_cnn().state_dict()), num_rounds=job.iterations + 1)
        say(END)

    resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}, "init_args": {"num_cpus": job.processes}}
    run_simulation(server, client, len(job.users), backend_config=resources)  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
