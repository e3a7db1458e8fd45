"""What Flower adds to our buffers, for a model of real size: width 16, 4 bits, the smallest that counts."""

import pytest
from flwr.app import Message
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.task_identity import TaskIdentity

from fedqssl.engines.flower.wire import Reply, Request, pack
from fedqssl.federated.job import Job
from fedqssl.federated.task import Task
from fedqssl.lowbit import LowBitOptions, to_bytes


def carried(message: Message) -> int:
    """Bytes of all objects of a message, and of the list of them."""
    objects = sum(len(part.deflate()) for part in get_all_nested_objects(message).values())
    return objects + get_object_tree(message).ByteSize()


@pytest.mark.parametrize("direction", ["down", "up"])
def test_at_most_two_percent(direction):
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1
    task = Task("resnet18", 16, 3, "simclr", 0.5, 128, 0, LowBitOptions(), 10)
    payload = to_bytes(task.converted(4))
    job = Job(3, 0.3, "fed_qssl", task, 2)
    about = (
        Request("r" * 16, "n" * 32, job.to_json())
        if direction == "down"
        else Reply("r" * 16, "n" * 32, 3, 5000, (4.1, 4.0))
    )
    extra = carried(Message(pack(about, payload), 7, "train")) - len(payload)
    assert 0 < extra <= 0.02 * len(payload), (extra, len(payload))
