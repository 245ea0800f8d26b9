"""Writes the descriptors for reflection: the services of the gRPC front and every message they use,
without options, comments and unused messages. Usage: descriptors.py OUT"""

import sys

from envoy.service.ratelimit.v3 import rls_pb2
from google.protobuf import descriptor_pb2, descriptor_pool
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

POOL = descriptor_pool.Default()


def reach(message, seen):
    """Adds a message, its enclosing messages, and all messages and enums of its fields."""
    if message is None or message.full_name in seen:
        return
    seen[message.full_name] = message
    reach(message.containing_type, seen)
    for field in message.fields:
        reach(field.message_type, seen)
        if field.enum_type is not None:
            seen[field.enum_type.full_name] = field.enum_type
            reach(field.enum_type.containing_type, seen)


def keep(prefix, messages, seen):
    """Removes unused messages and all options from a list of messages."""
    for message in list(messages):
        name = f"{prefix}.{message.name}"
        if name not in seen:
            messages.remove(message)
            continue
        entry = message.options.map_entry
        message.ClearField("options")
        if entry:
            message.options.map_entry = True
        for field in message.field:
            field.ClearField("options")
        for oneof in message.oneof_decl:
            oneof.ClearField("options")
        keep(name, message.nested_type, seen)
        keep_enums(name, message.enum_type, seen)


def keep_enums(prefix, enums, seen):
    for enum in list(enums):
        if f"{prefix}.{enum.name}" not in seen:
            enums.remove(enum)
            continue
        enum.ClearField("options")
        for value in enum.value:
            value.ClearField("options")


def uses(proto, seen):
    """Returns the files whose messages and enums a file uses."""
    named = {method.input_type for service in proto.service for method in service.method}
    named |= {method.output_type for service in proto.service for method in service.method}
    waiting = list(proto.message_type)
    while waiting:
        message = waiting.pop()
        waiting.extend(message.nested_type)
        named |= {field.type_name for field in message.field}
    return {seen[name[1:]].file.name for name in named if name}


def trim(file, seen):
    proto = descriptor_pb2.FileDescriptorProto()
    file.CopyToProto(proto)
    # Python packages contain them under different names.
    proto.name = proto.name.replace("grpc_", "grpc/")
    for gone in ("options", "source_code_info", "extension"):
        proto.ClearField(gone)
    keep(proto.package, proto.message_type, seen)
    keep_enums(proto.package, proto.enum_type, seen)
    for service in proto.service:
        service.ClearField("options")
        for method in service.method:
            method.ClearField("options")
    imports = [name for name in proto.dependency if name in uses(proto, seen)]
    del proto.dependency[:], proto.public_dependency[:], proto.weak_dependency[:]
    proto.dependency.extend(imports)
    return proto


def main(out):
    seen, roots = {}, [rls_pb2.DESCRIPTOR, health_pb2.DESCRIPTOR, reflection_pb2.DESCRIPTOR]
    for file in roots:
        for service in file.services_by_name.values():
            for method in service.methods:
                reach(method.input_type, seen)
                reach(method.output_type, seen)
    files = {item.file.name: item.file for item in seen.values()}
    files.update((file.name, file) for file in roots)
    protos = descriptor_pb2.FileDescriptorSet()
    protos.file.extend(trim(files[name], seen) for name in sorted(files))
    add_newer(protos)
    # The messages of the older version under their later name.
    older = next(f for f in protos.file if f.package == "grpc.reflection.v1alpha")
    newer = descriptor_pb2.FileDescriptorProto()
    newer.CopyFrom(older)
    rename(newer, ".grpc.reflection.v1alpha.", ".grpc.reflection.v1.")
    newer.name, newer.package = "grpc/reflection/v1/reflection.proto", "grpc.reflection.v1"
    protos.file.append(newer)
    pool = descriptor_pool.DescriptorPool()
    for proto in order(protos.file):
        pool.Add(proto)
    for proto in protos.file:
        pool.FindFileByName(proto.name)
    with open(out, "wb") as written:
        written.write(protos.SerializeToString(deterministic=True))


def add_newer(protos):
    """Adds fields of Envoy that the package lacks: refunds and weeks."""
    by_name = {file.name: file for file in protos.file}
    (descriptor,) = by_name["envoy/extensions/common/ratelimit/v3/ratelimit.proto"].message_type
    if all(field.name != "is_negative_hits" for field in descriptor.field):
        kind = descriptor_pb2.FieldDescriptorProto
        descriptor.field.add(name="is_negative_hits", number=4, type=kind.TYPE_BOOL, label=kind.LABEL_OPTIONAL,
                             json_name="isNegativeHits")
    response = by_name["envoy/service/ratelimit/v3/rls.proto"].message_type[1]
    limit = next(nested for nested in response.nested_type if nested.name == "RateLimit")
    for unit in (limit.enum_type[0], by_name["envoy/type/v3/ratelimit_unit.proto"].enum_type[0]):
        if all(value.name != "WEEK" for value in unit.value):
            unit.value.add(name="WEEK", number=7)


def rename(file, old, new):
    for message in file.message_type:
        for field in message.field:
            if field.type_name:
                field.type_name = field.type_name.replace(old, new)
    for service in file.service:
        for method in service.method:
            method.input_type = method.input_type.replace(old, new)
            method.output_type = method.output_type.replace(old, new)


def order(files):
    by_name, done = {file.name: file for file in files}, {}

    def visit(file):
        if file.name not in done:
            for name in file.dependency:
                visit(by_name[name])
            done[file.name] = file

    for file in files:
        visit(file)
    return done.values()


main(sys.argv[1])
