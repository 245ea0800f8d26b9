"""A gRPC client of tidegate, with Envoy's messages and grpcio.

Reads one JSON object per line and writes one per line. The first must be `connect`; the methods
of `Client` are the others.
"""

import json
import sys

import grpc
from envoy.service.ratelimit.v3 import rls_pb2, rls_pb2_grpc
from google.protobuf import descriptor_pool, json_format
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

# The timeout in seconds, far longer than any call takes.
PATIENCE = 30


def read(path):
    with open(path, "rb") as file:
        return file.read()


def to_json(message):
    return json_format.MessageToDict(message, preserving_proto_field_name=True)


def to_message(request):
    """Converts a request from JSON. The package lacks `is_negative_hits`, which is added as bytes."""
    descriptors = [dict(descriptor) for descriptor in request.get("descriptors", [])]
    negative = [descriptor.pop("is_negative_hits", False) for descriptor in descriptors]
    message = json_format.ParseDict({**request, "descriptors": descriptors}, rls_pb2.RateLimitRequest())
    for descriptor, is_negative in zip(message.descriptors, negative):
        if is_negative:
            descriptor.MergeFromString(bytes([4 << 3, 1]))
    return message


def failed(error):
    return {"code": error.code().name, "message": error.details()}


class Client:
    def connect(self, target, ca=None, cert=None, key=None):
        # A separate connection, not one shared with another client of this process.
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_retries", 0)]
        if target.startswith("unix:"):
            # The default is the path, which is not a valid authority.
            options.append(("grpc.default_authority", "localhost"))
        if ca is None:
            self.channel = grpc.insecure_channel(target, options)
        else:
            files = (read(ca), key and read(key), cert and read(cert))
            credentials = grpc.ssl_channel_credentials(*files)
            options.append(("grpc.ssl_target_name_override", "localhost"))
            self.channel = grpc.secure_channel(target, credentials, options)
        return {}

    def limit(self, request, metadata=()):
        """Sends one request, given as JSON."""
        message = to_message(request)
        stub = rls_pb2_grpc.RateLimitServiceStub(self.channel)
        metadata = [tuple(pair) for pair in metadata]
        try:
            return {"code": "OK", "reply": to_json(stub.ShouldRateLimit(message, PATIENCE, metadata))}
        except grpc.RpcError as error:
            return failed(error)

    def many(self, request, count):
        """Sends a request `count` times at once; counts the admitted, denied and failed ones."""
        message = to_message(request)
        stub = rls_pb2_grpc.RateLimitServiceStub(self.channel)
        calls = [stub.ShouldRateLimit.future(message, PATIENCE) for _ in range(count)]
        seen = {}
        for call in calls:
            error = call.exception()
            name = failed(error)["code"] if error else rls_pb2.RateLimitResponse.Code.Name(call.result().overall_code)
            seen[name] = seen.get(name, 0) + 1
        return seen

    def raw(self, method, message, compression=None):
        """Sends any bytes (as hexadecimal digits) to any method."""
        same = bytes
        call = self.channel.unary_unary(method, request_serializer=same, response_deserializer=same)
        options = {"compression": grpc.Compression[compression]} if compression else {}
        try:
            return {"code": "OK", "reply": call(bytes.fromhex(message), PATIENCE, **options).hex()}
        except grpc.RpcError as error:
            return failed(error)

    def large(self, size):
        """Sends a request with a value of this many bytes."""
        request = {"domain": "d", "descriptors": [{"entries": [{"key": "k", "value": "x" * size}]}]}
        return self.limit(request)

    def health(self, service):
        stub = health_pb2_grpc.HealthStub(self.channel)
        try:
            return {"code": "OK", "reply": to_json(stub.Check(health_pb2.HealthCheckRequest(service=service), PATIENCE))}
        except grpc.RpcError as error:
            return failed(error)

    def health_list(self):
        stub = health_pb2_grpc.HealthStub(self.channel)
        return to_json(stub.List(health_pb2.HealthListRequest(), PATIENCE))

    def watch(self, service):
        """Starts to watch; `watched` returns the next status."""
        stub = health_pb2_grpc.HealthStub(self.channel)
        self.watching = stub.Watch(health_pb2.HealthCheckRequest(service=service), PATIENCE)
        return self.watched()

    def watched(self):
        try:
            return {"code": "OK", "reply": to_json(next(self.watching))}
        except grpc.RpcError as error:
            return failed(error)

    def reflect(self):
        """Returns every service with its methods, by reflection; compared with the real ones."""
        database = ProtoReflectionDescriptorDatabase(self.channel)
        pool = descriptor_pool.DescriptorPool(database)
        services = {}
        for name in database.get_services():
            service = pool.FindServiceByName(name)
            services[name] = [method.name for method in service.methods]
            for method in service.methods:
                for message in (method.input_type, method.output_type):
                    compare(message, pool, set())
        return services

    def reflect_raw(self, version, **question):
        """Sends one request to this version of reflection."""
        call = self.channel.stream_stream(
            f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
            request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
            response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
        )
        request = json_format.ParseDict(question, reflection_pb2.ServerReflectionRequest())
        try:
            (reply,) = call(iter([request]), PATIENCE)
        except grpc.RpcError as error:
            return failed(error)
        reply = to_json(reply)
        if "file_descriptor_response" in reply:
            files = reply["file_descriptor_response"]["file_descriptor_proto"]
            reply["file_descriptor_response"] = len(files)
        return reply


def compare(message, pool, seen):
    """Asserts that a message and all its fields are as in the real packages, or newer."""
    if message.full_name in seen or message.full_name.startswith("grpc.reflection.v1."):
        return
    seen.add(message.full_name)
    real = descriptor_pool.Default().FindMessageTypeByName(message.full_name)
    for same in real.fields:
        field = message.fields_by_name[same.name]
        for fact in ("number", "type", "is_repeated"):
            assert getattr(field, fact) == getattr(same, fact), field.full_name
        if field.message_type is not None:
            assert field.message_type.full_name == same.message_type.full_name, field.full_name
            compare(field.message_type, pool, seen)
        if field.enum_type is not None:
            values = {(v.name, v.number) for v in field.enum_type.values}
            assert values >= {(v.name, v.number) for v in same.enum_type.values}, field.full_name


def main():
    client = Client()
    for line in sys.stdin:
        call = json.loads(line)
        answer = getattr(client, call.pop("do"))(**call)
        print(json.dumps(answer), flush=True)


main()
