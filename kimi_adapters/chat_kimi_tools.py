"""Tools as Kimi-K2.5 is told of them: each function a TypeScript type, its parameters' JSON schema written out.

The layout follows the published tokenizer's ``tool_declaration_ts``: keys in rising order, required parameters before optional
ones, notes (description, limits, default) as comment lines above what they describe.
"""

import json
from collections.abc import Sequence
from typing import Any

from kimi_adapters.chat_reasons import Reason, Rejected

_STEP = "  "
_NAMES = {
    "string": "string",
    "number": "number",
    "integer": "number",
    "boolean": "boolean",
    "null": "null",
    "object": "{}",
    "array": "Array<any>",
}
_LIMITS = {
    "string": ("maxLength", "minLength", "pattern"),
    "number": ("maximum", "minimum"),
    "integer": ("maximum", "minimum"),
    "array": ("maxItems", "minItems"),
}
_ENUM_TYPES: dict[str, type | tuple[type, ...]] = {"string": str, "number": (int, float), "integer": int, "boolean": bool}


def declare(tools: Sequence[dict[str, Any]]) -> str:
    """The text of the ``tool_declare`` turn; ``Rejected`` where a schema has no form in it."""
    try:
        functions = [_Function(tool["function"]).text() for tool in tools]
    except (LookupError, TypeError, AttributeError):
        raise Rejected(Reason.FORMAT_SCHEMA) from None
    return "# Tools\n\n## functions\nnamespace functions {\n" + "\n".join(functions) + "\n}\n"


class _Function:
    """One function; ``$defs`` are met while its schema is written, and so is a reference to the schema itself."""

    def __init__(self, function: dict[str, Any]) -> None:
        self._function = function
        self._definitions: dict[str, Any] = {}
        self._refers_to_itself = False

    def text(self) -> str:
        """Interfaces, description and type."""
        schema = self._function.get("parameters") or {}
        whole = self._object(schema, "")
        parts = []
        if self._refers_to_itself:
            names = sorted(schema.get("properties", {}))
            fields = ",\n".join(self._field(schema, name, _STEP) for name in names)
            parts.append("interface parameters {" + (f"\n{fields}\n" if fields else "") + "}")
            whole = "parameters"
        for name, definition in sorted(self._definitions.items()):
            described = _comment(definition.get("description") or "", "")
            parts.append("".join(f"{line}\n" for line in described) + f"interface {name} {self._type(definition, '')}")
        parts += _comment(self._function.get("description") or "", "")
        return "\n".join([*parts, f"type {self._function['name']} = (_: {whole}) => any;"])

    def _type(self, schema: Any, indent: str) -> str:
        if schema is True or schema == {}:
            return "any"
        if schema is False:
            return "null"
        kind = schema.get("type")
        if "$ref" in schema:
            return self._reference(schema["$ref"])
        if "anyOf" in schema:
            return " | ".join(self._type(one, indent) for one in schema["anyOf"])
        if "enum" in schema:
            return _enumeration(schema["enum"], kind)
        if isinstance(kind, list):
            return " | ".join(_NAMES[one] for one in kind)
        if kind == "object":
            return self._object(schema, indent)
        if kind == "array":
            return self._array(schema, indent)
        if not isinstance(kind, str):
            raise Rejected(Reason.FORMAT_SCHEMA)
        return "number" if kind == "integer" else kind

    def _reference(self, target: str) -> str:
        if target == "#":
            self._refers_to_itself = True
            return "parameters"
        name = target.removeprefix("#/$defs/")
        if name == target or name not in self._definitions:
            raise Rejected(Reason.FORMAT_SCHEMA)
        return name

    def _object(self, schema: dict[str, Any], indent: str) -> str:
        self._definitions |= schema.get("$defs") or {}
        required = set(schema.get("required") or [])
        names = sorted(schema.get("properties") or {}, key=lambda name: (name not in required, name))
        fields = [self._field(schema, name, indent + _STEP) for name in names]
        extra = schema.get("additionalProperties")
        if extra is not None:
            kind = {True: "any", False: "never"}[extra] if isinstance(extra, bool) else self._type(extra, indent + _STEP)
            fields.append(f"{indent}{_STEP}[k: string]: {kind}")
        return "{\n" + ",\n".join(fields) + f"\n{indent}}}" if fields else "{}"

    def _field(self, schema: dict[str, Any], name: str, indent: str) -> str:
        field = schema["properties"][name]
        lines = _notes(field, indent)
        default = field.get("default") if isinstance(field, dict) else None
        if default is not None:
            number = isinstance(default, int | float)
            lines.append(f"{indent}// Default: {default!r}" if number else f"{indent}// Default: {_json(default)}")
        optional = "" if name in (schema.get("required") or []) else "?"
        return "".join(f"{line}\n" for line in lines) + f"{indent}{name}{optional}: {self._type(field, indent)}"

    def _array(self, schema: dict[str, Any], indent: str) -> str:
        item = schema.get("items") or True
        lines = _notes(item, indent + _STEP)
        if not lines:
            return f"Array<{self._type(item, indent)}>"
        kind = self._type(item, indent + _STEP)
        return "Array<\n" + "".join(f"{line}\n" for line in lines) + f"{indent}{_STEP}{kind}\n{indent}>"


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, sort_keys=True)


def _comment(text: str, indent: str) -> list[str]:
    return [f"{indent}// {line}" if line else "" for line in text.split("\n")] if text else []


def _notes(schema: Any, indent: str) -> list[str]:
    """Comment lines: the description, then the limits that the type knows."""
    if not isinstance(schema, dict):
        return []
    lines = _comment(schema.get("description") or "", indent)
    plain = not {"$ref", "anyOf", "enum"} & schema.keys() and isinstance(schema.get("type"), str)
    known = _LIMITS.get(schema["type"], ()) if plain else ()
    limits = ", ".join(f"{name}: {schema[name]}" for name in sorted(known) if name in schema)
    return [*lines, f"{indent}// {limits}"] if limits else lines


def _enumeration(values: list[Any], kind: Any) -> str:
    if isinstance(kind, list):
        others = [one for one in kind if one != "null"]
        if len(others) != 1 or len(kind) > 2:
            raise Rejected(Reason.FORMAT_SCHEMA)
        kind = others[0]
    allowed = _ENUM_TYPES.get(kind, object)
    if not all(value is None or isinstance(value, allowed) for value in values):
        raise Rejected(Reason.FORMAT_SCHEMA)
    return " | ".join(f'"{value}"' if isinstance(value, str) else str(value) for value in values)
