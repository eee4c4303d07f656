"""Grafana's schema of dashboards, panels and queries of Prometheus, as grafana-foundation-sdk has it. Its classes and
the types of their members are generated from Grafana's own schema. The library does not check types when it reads a
dashboard, so this module does.
"""
import copy
import enum
import json
import types
import typing

from grafana_foundation_sdk.cog import plugins, runtime
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import dashboard as model

plugins.register_default_plugins()  # the library reads panels and queries with their own classes


def encode(board):
    return JSONEncoder(sort_keys=True, indent=1).encode(board) + "\n"


def told_of_class(value, wanted, where):
    if isinstance(value, runtime.UnknownDataquery):
        return [f"{where} is a query of no known data source"]
    told = []
    if isinstance(value, dict) and hasattr(wanted, "from_json"):  # the library left it unchanged
        plain, value = value, wanted.from_json(value)
        told += [f"{where} has a member that is unknown, or lacks one"] if encode(value) != encode(plain) else []
    if not isinstance(value, wanted):
        return [f"{where} is of {type(value).__name__}, no {wanted.__name__}"]
    if isinstance(value, model.Panel) and not runtime.panelcfg_config(value.type_val):
        told.append(f"{where}.type has the unknown value {value.type_val!r}")
    for name, kind in typing.get_type_hints(type(value)).items():
        told += told_of(getattr(value, name), kind, f"{where}.{name}")
    return told


def told_of(value, wanted, where):
    """The mistakes of a value, compared with its type in the schema."""
    origin, inner = typing.get_origin(wanted), typing.get_args(wanted)
    if origin in (typing.Union, types.UnionType):
        # Of several possible types, report the one that the value has, if only its members are wrong.
        return min((told_of(value, one, where) for one in inner), key=lambda told: (f"{where} is" in " ".join(told), len(told)))
    if origin is typing.Literal:
        return [] if value in inner else [f"{where} is {value!r}, none of {inner}"]
    if origin in (list, dict):
        if not isinstance(value, origin):
            return [f"{where} is {value!r}, no {origin.__name__}"]
        items = enumerate(value) if origin is list else value.items()
        return [fault for key, one in items for fault in told_of(one, inner[-1], f"{where}[{key}]")]
    if wanted is object and value is None:
        return [f"{where} is null"]
    if wanted in (object, typing.Any):  # options of a panel, which have the panel's own class
        return told_of_class(value, type(value), where) if hasattr(value, "to_json") else []
    if isinstance(wanted, type) and issubclass(wanted, enum.Enum):
        known = value in list(wanted) or value in [one.value for one in wanted]
        return [] if known else [f"{where} is {value!r}, none of {[one.value for one in wanted]}"]
    if wanted in (str, bool, int, float, types.NoneType):
        taken = {float: (float, int)}.get(wanted, wanted)
        right = isinstance(value, taken) and (wanted is bool or not isinstance(value, bool))
        return [] if right else [f"{where} is {value!r}, no {wanted.__name__}"]
    return told_of_class(value, wanted, where)


def faults_of(text):
    """The mistakes of a dashboard's JSON, compared with Grafana's schema."""
    try:
        board = model.Dashboard.from_json(json.loads(text))
        told = told_of(board, model.Dashboard, "dashboard")
        back = encode(board)
    except (TypeError, ValueError, AttributeError, KeyError) as error:
        return [f"it cannot be read: {error!r}"]
    # The classes drop members that the schema does not know, and add members that it requires.
    return told or ([] if back == text else ["a member is unknown to the schema, or one is missing"])


# Mistakes planted in a dashboard, and the message expected for each.
PLANTED = (
    (lambda board: board.update(colour="red"), "unknown to the schema"),
    (lambda board: board.update(title=7), "dashboard.title"),
    (lambda board: board.update(graphTooltip="all"), "dashboard.graph_tooltip"),
    (lambda board: board["templating"]["list"][1].update(type="choice"), "list_val[1].type_val"),
    (lambda board: board["panels"][1].update(type="graph3d"), "unknown value 'graph3d'"),
    (lambda board: board["panels"][1]["gridPos"].update(h="8"), "grid_pos.h"),
    (lambda board: board["panels"][1]["options"].update(depth=3), "unknown to the schema"),
    (lambda board: board["panels"][1]["fieldConfig"]["defaults"].update(unit=["s"]), "defaults.unit"),
    (lambda board: board["panels"][1]["fieldConfig"]["defaults"]["thresholds"].update(mode="relative"), "thresholds.mode"),
    (lambda board: board["panels"][1]["targets"][0].update(format="graph"), "format"),
    (lambda board: board["panels"][1]["targets"][0].update(expression="up"), "unknown to the schema"),
)


def unseen(text):
    """Planted mistakes that are not found. If none is missed, the check of the dashboards works."""
    missed = []
    for number, (plant, word) in enumerate(PLANTED):
        board = copy.deepcopy(json.loads(text))
        plant(board)
        told = faults_of(json.dumps(board, sort_keys=True, indent=1) + "\n")
        if not any(word in one for one in told):
            missed.append(f"fault {number} ({word}): {told}")
    return missed
