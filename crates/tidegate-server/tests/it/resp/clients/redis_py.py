"""Typical use of redis-py.

Arguments: the port of a server without a secret, the port of one with a secret, the secret.
"""

import asyncio
import sys

import redis
import redis.asyncio

open_port, closed_port, secret = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]


def as_text(reply):
    return [item.decode() if isinstance(item, bytes) else item for item in reply]


def check(client, key):
    assert client.ping() is True
    first = as_text(client.execute_command("TG.CHECK", "login", key))
    assert first == [1, 2, 1, 0, 3600000, "login", "exact"], first
    # A pipeline, with replies in order.
    pipe = client.pipeline(transaction=False)
    for _ in range(100):
        pipe.execute_command("TG.CHECK", "login", key)
    pipe.execute_command("TG.CHECK", "login", key, "COST", 3)
    replies = pipe.execute()
    assert [reply[0] for reply in replies] == [1] + [0] * 100, replies
    assert replies[-1][3] is None, replies[-1]
    # The default pipeline: redis-py wraps it in MULTI and EXEC.
    pipe = client.pipeline()
    for _ in range(3):
        pipe.execute_command("TG.CHECK", "api", "multi:" + key)
    pipe.execute_command("TG.PEEK", "login", key)
    replies = pipe.execute()
    assert [reply[0] for reply in replies] == [1, 1, 1, 0], replies
    assert replies[0][2] - replies[2][2] == 2, replies
    pipe = client.pipeline()
    pipe.execute_command("TG.CHECK", "api", "multi:" + key)
    pipe.execute_command("TG.CHECK", "nobody", key)
    failed = pipe.execute(raise_on_error=False)
    assert failed[0][0] == 1 and "there is no policy" in str(failed[1]), failed
    assert client.execute_command("CL.THROTTLE", "py:" + key, 15, 30, 60) == [0, 16, 15, -1, 2]
    assert client.execute_command("TG.RESET", "login", key) == 1
    assert client.execute_command("TG.LIMIT", "5 per 1m sliding-log", key)[:3] == [1, 5, 4]
    assert client.info()["tidegate_version"]
    assert client.config_get("save") == {"save": ""}
    assert client.client_getname() in (None, "me")
    try:
        client.execute_command("TG.CHECK", "nobody", key)
        raise AssertionError("an unknown policy was accepted")
    except redis.ResponseError as error:
        assert "there is no policy `nobody`" in str(error), error


check(redis.Redis(port=open_port), "default")
check(redis.Redis(port=open_port, protocol=2), "resp2")
check(redis.Redis(port=open_port, protocol=3, client_name="me", decode_responses=True), "resp3")
check(redis.Redis(port=closed_port, password=secret), "password")
check(redis.Redis(port=closed_port, username="me", password=secret, protocol=3), "user")
check(redis.Redis.from_url(f"redis://:{secret}@127.0.0.1:{closed_port}/0"), "url")

for bad in (dict(), dict(password="wrong"), dict(password="wrong", protocol=3)):
    try:
        redis.Redis(port=closed_port, **bad).ping()
        raise AssertionError("the server accepted a wrong secret")
    except redis.AuthenticationError:
        pass


async def ask():
    client = redis.asyncio.Redis(port=open_port)
    calls = (client.execute_command("TG.CHECK", "login", "async") for _ in range(50))
    replies = await asyncio.gather(*calls)
    assert sum(reply[0] for reply in replies) == 2, replies
    await client.aclose()


asyncio.run(ask())
print("done")
