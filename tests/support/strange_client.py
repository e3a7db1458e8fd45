"""A registered client that does not behave: ``strange_client.py FLEET NAME BITS DATA HOW``.

HOW: ``raise``, ``slow:SECONDS`` (in round 2), ``slowly:SECONDS`` (always), or what it sends in place of its model:
``truncated``, ``bits:N`` (a model of other bits), ``replay`` (its whole reply of round 1), ``gigabyte``.
"""

import sys
import time
from pathlib import Path

from flwr.app import Message

from fedqssl.deploy import client_process
from fedqssl.deploy.client_role import FleetClient
from fedqssl.deploy.fleet import Fleet
from fedqssl.engines.flower.wire import Request, unpack
from fedqssl.lowbit import to_bytes

path, name, bits, data, how = sys.argv[1:]
what, _, number = how.partition(":")
honest = FleetClient.train


def train(role, request, payload):
    job = request.job()
    sent, metrics = honest(role, request, payload)
    if what == "raise":
        raise RuntimeError("secret: /home/me/holiday.png")
    if what == "slowly" or (what == "slow" and job.round_number == 1):
        print("asleep", flush=True)
        time.sleep(float(number))
    changed = {
        "truncated": lambda: sent[:-100],
        "bits": lambda: to_bytes(job.task.converted(int(number))),
        "gigabyte": lambda: bytes(1 << 30),
    }
    return changed.get(what, lambda: sent)(), metrics


FleetClient.train = train
real, kept = client_process.client_app, []


def replaying(role_of):
    app = real(role_of)

    def call(message, context):
        reply = app(message, context)
        if what == "replay" and message.metadata.message_type == "train":
            unpack(message.content, Request)
            kept.append(reply.content)
            return Message(kept[0], reply_to=message)
        return reply

    return call


client_process.client_app = replaying
client_process.join(
    Fleet.open(Path(path)), name, int(bits), data, 1, "error", False, lambda line: print(line, flush=True)
)
