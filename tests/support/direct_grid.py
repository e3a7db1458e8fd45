"""Flower's Grid without processes: every ClientApp is called in place; replies come in any order, or spoilt, or not at all."""

import random

from flwr.app import Context, Message, RecordDict
from flwr.app.error import Error
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity


class DirectGrid(Grid):
    """``spoil[node]`` gets a reply and returns what arrives in its place (None: nothing)."""

    def __init__(self, apps, seed=0):
        self.apps, self.draw = apps, random.Random(seed)
        self.waiting, self.spoil, self.sent = {}, {}, []
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1

    def push_messages(self, messages):
        ids = []
        for message in messages:
            node, number = message.metadata.dst_node_id, f"message-{len(self.sent)}"
            message.metadata.__dict__["_message_id"] = number
            message.metadata.__dict__["_run_id"] = 1
            self.sent.append(message)
            reply = self.answer(node, message)
            if node in self.spoil:
                reply = self.spoil[node](reply, message)
            if reply is not None:
                self.waiting[number] = reply
            ids.append(number)
        return ids

    def answer(self, node, message):
        context = Context(run_id=1, node_id=node, node_config={}, state=RecordDict(), run_config={})
        try:
            return self.apps[node](message, context)
        except Exception as error:
            return Message(Error(2, type(error).__name__), reply_to=message)

    def pull_messages(self, message_ids):
        there = [number for number in message_ids if number in self.waiting]
        self.draw.shuffle(there)
        return [self.waiting.pop(number) for number in there[: self.draw.randint(0, 2)]]

    def get_node_ids(self):
        return list(self.apps)

    def get_nodes(self):
        return []

    def send_and_receive(self, messages, *, timeout=None):
        raise AssertionError("the engine has a loop of its own")

    def set_run(self, run):
        raise AssertionError("there is no run")

    @property
    def run(self):
        raise AssertionError("there is no run")

    def create_message(self, *arguments, **options):
        raise AssertionError("deprecated")
