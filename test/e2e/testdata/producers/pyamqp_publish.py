"""Publishes with py-amqp: URL, queue, queue that dead-letters to it.

It writes integers beyond 32 bits with the field type L of the specification,
which other clients do not know."""

import datetime
import decimal
import sys
from urllib.parse import unquote, urlsplit

import amqp

url, queue, waiting = sys.argv[1:]
u = urlsplit(url)
when = datetime.datetime(2024, 5, 1, 12, 0, 0)
headers = {
    "big": 1099511627777,
    "odd": 9007199254740993,
    "negative": -5,
    "negative_big": -1099511627777,
    "when": when,
    "bytes": b"\x00\xff",
    "float": 1.5,
    "decimal": decimal.Decimal("-12.30"),
    "yes": True,
    "no": False,
    "nothing": None,
    "text": "Müller",
    "nested": {"a": {"b": [1, "two", {"c": 1099511627777}]}, "when": when},
    "list": [1, -1099511627777, "x", None, False],
}


def message(message_id, body):
    return amqp.Message(
        body, message_id=message_id, content_type="application/json", content_encoding="utf-8", delivery_mode=2,
        application_headers=headers, priority=5, correlation_id="corr 1", reply_to="answers", type="order.paid",
        app_id="shop", timestamp=1714564800123,
    )


with amqp.Connection(
    "%s:%d" % (u.hostname, u.port or 5672), userid=unquote(u.username), password=unquote(u.password),
    virtual_host=unquote(u.path[1:]) or "/", confirm_publish=True,
) as connection:
    channel = connection.channel()
    for _ in range(2):
        channel.basic_publish(message("rich", '{"n":1}'), routing_key=queue, mandatory=True)
    channel.basic_publish(message("dead", '{"n":2}'), routing_key=waiting, mandatory=True)
