"""Publishes with pika: URL, queue, queue that dead-letters to it."""

import datetime
import decimal
import sys

import pika

url, queue, waiting = sys.argv[1:]
when = datetime.datetime(2024, 5, 1, 12, 0, 0)
headers = {
    "big": 1099511627777,
    "odd": 9007199254740993,
    "negative": -5,
    "negative_big": -1099511627777,
    "when": when,
    "bytes": b"\x00\xff",
    "decimal": decimal.Decimal("12.34"),
    "yes": True,
    "no": False,
    "nothing": None,
    "text": "Müller",
    "nested": {"a": {"b": [1, "two", {"c": True}]}, "when": when},
    "list": [1, -1099511627777, "x", None, False, b"\x01"],
}


def properties(message_id):
    return pika.BasicProperties(
        message_id=message_id, content_type="application/json", content_encoding="utf-8", delivery_mode=2,
        headers=headers, timestamp=1714564800123, priority=5, correlation_id="corr 1", reply_to="answers",
        type="order.paid", app_id="shop",
    )


connection = pika.BlockingConnection(pika.URLParameters(url))
channel = connection.channel()
channel.confirm_delivery()
for _ in range(2):
    channel.basic_publish("", queue, b'{"n":1}', properties("rich"), mandatory=True)
channel.basic_publish("", waiting, b'{"n":2}', properties("dead"), mandatory=True)
channel.basic_publish("", queue, "näh".encode(), pika.BasicProperties(message_id="bare ü"), mandatory=True)
connection.close()
