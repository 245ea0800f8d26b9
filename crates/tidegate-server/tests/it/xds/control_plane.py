"""An xDS control plane for rate limit configs, with Envoy's messages and grpcio.

Reads one JSON object per line and writes one per line. The first must be `serve`; the methods of
`ControlPlane` are the others.
"""

import json
import queue
import sys
import threading
from concurrent import futures

import grpc
from envoy.service.discovery.v3 import ads_pb2_grpc, discovery_pb2
from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory, struct_pb2

# The timeout in seconds, far longer than anything takes.
PATIENCE = 30

TYPE_URL = "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig"

# The messages of rls_conf.proto: name -> [(field, number, type, is repeated)].
MESSAGES = {
    "RateLimitConfig": [
        ("name", 1, "string", False),
        ("domain", 2, "string", False),
        ("descriptors", 3, "RateLimitDescriptor", True),
    ],
    "RateLimitDescriptor": [
        ("key", 1, "string", False),
        ("value", 2, "string", False),
        ("rate_limit", 3, "RateLimitPolicy", False),
        ("descriptors", 4, "RateLimitDescriptor", True),
        ("shadow_mode", 5, "bool", False),
        ("detailed_metric", 6, "bool", False),
        ("quota_mode", 7, "bool", False),
        ("metadata", 8, "google.protobuf.Struct", False),
    ],
    "RateLimitPolicy": [
        ("unit", 1, "RateLimitUnit", False),
        ("requests_per_unit", 2, "uint32", False),
        ("unlimited", 3, "bool", False),
        ("name", 4, "string", False),
        ("replaces", 5, "RateLimitReplace", True),
    ],
    "RateLimitReplace": [("name", 1, "string", False)],
}
UNITS = ["UNKNOWN", "SECOND", "MINUTE", "HOUR", "DAY", "MONTH", "YEAR", "WEEK"]
PACKAGE = "ratelimit.config.ratelimit.v3"


def config_class():
    """Returns the class of `RateLimitConfig`, which is in no Python package."""
    field_type = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="rls_conf.proto", package=PACKAGE, syntax="proto3")
    file.dependency.append(struct_pb2.DESCRIPTOR.name)
    unit = file.enum_type.add(name="RateLimitUnit")
    for number, name in enumerate(UNITS):
        unit.value.add(name=name, number=number)
    for name, fields in MESSAGES.items():
        message = file.message_type.add(name=name)
        for field_name, number, kind, is_repeated in fields:
            label = field_type.LABEL_REPEATED if is_repeated else field_type.LABEL_OPTIONAL
            field = message.field.add(name=field_name, number=number, label=label)
            if kind in ("string", "bool", "uint32"):
                field.type = getattr(field_type, f"TYPE_{kind.upper()}")
            elif kind == "RateLimitUnit":
                field.type, field.type_name = field_type.TYPE_ENUM, f".{PACKAGE}.{kind}"
            else:
                full_name = kind if "." in kind else f"{PACKAGE}.{kind}"
                field.type, field.type_name = field_type.TYPE_MESSAGE, f".{full_name}"
    pool = descriptor_pool.Default()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.RateLimitConfig"))


RateLimitConfig = config_class()


def read(path):
    with open(path, "rb") as file:
        return file.read()


def to_json(message):
    return json_format.MessageToDict(message, preserving_proto_field_name=True)


class ControlPlane(ads_pb2_grpc.AggregatedDiscoveryServiceServicer):
    def __init__(self):
        # One item per request of a client, and one queue of responses per open stream.
        self.requests = queue.Queue()
        self.streams = []
        self.lock = threading.Lock()
        self.nonce = 0

    def StreamAggregatedResources(self, requests, context):
        responses = queue.Queue()
        with self.lock:
            self.streams.append(responses)
        metadata = dict(context.invocation_metadata())

        def receive():
            try:
                for request in requests:
                    self.requests.put({**to_json(request), "metadata": metadata})
            except grpc.RpcError:
                pass
            responses.put(None)

        threading.Thread(target=receive, daemon=True).start()
        while (response := responses.get()) is not None:
            if isinstance(response, str):
                context.abort(grpc.StatusCode.PERMISSION_DENIED, response)
            yield response

    def serve(self, port=0, ca=None, cert=None, key=None):
        """Starts to listen; with `cert` and `key` over TLS, with `ca` only for its clients."""
        self.server = grpc.server(futures.ThreadPoolExecutor(8), options=[("grpc.so_reuseport", 0)])
        ads_pb2_grpc.add_AggregatedDiscoveryServiceServicer_to_server(self, self.server)
        address = f"127.0.0.1:{port}"
        if cert is None:
            port = self.server.add_insecure_port(address)
        else:
            credentials = grpc.ssl_server_credentials(
                [(read(key), read(cert))], ca and read(ca), ca is not None
            )
            port = self.server.add_secure_port(address, credentials)
        self.server.start()
        return {"port": port}

    def stop(self):
        """Closes all connections and stops listening."""
        with self.lock:
            self.streams.clear()
        self.server.stop(0).wait(PATIENCE)
        return {}

    def next_request(self):
        """Returns the next request of a client."""
        return self.requests.get(timeout=PATIENCE)

    def send(self, version, configs=(), raw=(), type_url=TYPE_URL):
        """Sends a response: configs as JSON, and resources as pairs of type and hexadecimal digits."""
        response = discovery_pb2.DiscoveryResponse(version_info=version, type_url=type_url)
        self.nonce += 1
        response.nonce = str(self.nonce)
        for config in configs:
            message = json_format.ParseDict(config, RateLimitConfig())
            response.resources.add(type_url=TYPE_URL, value=message.SerializeToString())
        for resource_type, digits in raw:
            response.resources.add(type_url=resource_type, value=bytes.fromhex(digits))
        with self.lock:
            for stream in self.streams:
                stream.put(response)
        return {"nonce": response.nonce}

    def send_and_abort(self, reason, **response):
        """Sends a response, and ends the stream with an error."""
        self.send(**response)
        with self.lock:
            for stream in self.streams:
                stream.put(reason)
            self.streams.clear()
        return {}

    def push(self, version, **response):
        """Sends a response, and returns the request that acknowledges or rejects it."""
        nonce = self.send(version, **response)["nonce"]
        while (request := self.next_request()).get("response_nonce") != nonce:
            pass
        return request

    def flood(self, count, configs):
        """Sends `count` responses at once. Returns the acknowledgement of the last, and how many there were."""
        for number in range(count):
            last = self.send(f"flood-{number}", configs)["nonce"]
        seen = 1
        while (request := self.next_request()).get("response_nonce") != last:
            seen += 1
        return {**request, "acknowledgements": seen}

    def push_large(self, version, domain, count):
        """Pushes a config of `count` descriptors of one second and 1,000 requests, with values 0, 1, ..."""
        descriptors = [
            {"key": "k", "value": str(number), "rate_limit": {"unit": "SECOND", "requests_per_unit": 1000}}
            for number in range(count)
        ]
        return self.push(version, configs=[{"name": domain, "domain": domain, "descriptors": descriptors}])


def main():
    control_plane = ControlPlane()
    for line in sys.stdin:
        call = json.loads(line)
        reply = getattr(control_plane, call.pop("do"))(**call)
        print(json.dumps(reply), flush=True)


main()
