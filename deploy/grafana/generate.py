"""Writes deploy/grafana/dashboards/*.json from panels.py with grafana-foundation-sdk, and checks them against
Grafana's schema (schema.py). `tools/dashboards` runs it in an environment of its own. With --check it writes nothing
and names the stale files.
"""
import pathlib
import sys

from grafana_foundation_sdk.builders import bargauge, common, dashboard, heatmap, prometheus, stat, timeseries
from grafana_foundation_sdk.models import common as terms, dashboard as model
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

import panels
import schema

FOLDER = pathlib.Path(__file__).resolve().parent / "dashboards"
SOURCE = model.DataSourceRef("prometheus", "${datasource}")
KINDS = {"timeseries": timeseries.Panel, "stat": stat.Panel, "bargauge": bargauge.Panel, "heatmap": heatmap.Panel}
NEWEST = common.ReduceDataOptions().calcs(["lastNotNull"])
OPTIONS = {
    "timeseries": lambda panel: panel.legend(common.VizLegendOptions().show_legend(True).display_mode(terms.LegendDisplayMode.LIST)
                                             .placement(terms.LegendPlacement.BOTTOM).calcs([]))
    .tooltip(common.VizTooltipOptions().mode(terms.TooltipDisplayMode.MULTI).sort(terms.SortOrder.DESCENDING)).fill_opacity(10),
    "stat": lambda panel: panel.reduce_options(NEWEST),
    "bargauge": lambda panel: panel.reduce_options(NEWEST),
    "heatmap": lambda panel: panel.calculate(False).scale_distribution(
        common.ScaleDistributionConfig().type(terms.ScaleDistribution.LINEAR)),
}
# Each variable offers values that fit the choice of the variable before it.
CHAIN = [("job", "Job", "label_values(nsad_build_info, job)"),
         ("instance", "Node", 'label_values(nsad_build_info{job=~"$job"}, instance)'),
         ("run_id", "Run", 'label_values(nsa_run_info{job=~"$job",instance=~"$instance"}, run_id)'),
         ("rank", "Rank", 'label_values(nsa_rank_up{job=~"$job",instance=~"$instance",run_id=~"$run_id"}, rank)')]


def thresholds(panel):
    """Green, yellow, red; in reverse order if small values are bad."""
    steps = [(None, "green"), (panel.warn, "yellow"), (panel.bad, "red")]
    if panel.falling:
        known = [v for v in (panel.bad, panel.warn) if v is not None]
        colours = (["red"] if panel.bad is not None else []) + (["yellow"] if panel.warn is not None else []) + ["green"]
        steps = list(zip([None, *known], colours))
    return dashboard.ThresholdsConfig().mode(model.ThresholdsMode.ABSOLUTE).steps(
        [model.Threshold(value=v, color=c) for i, (v, c) in enumerate(steps) if v is not None or i == 0])


def panel_of(panel, number):
    built = (KINDS[panel.kind]().id(number).title(panel.title).description(panel.text).unit(panel.unit).datasource(SOURCE)
             .height(8).span(panel.width).thresholds(thresholds(panel))
             .links([dashboard.DashboardLink("What to do").url(f"${{docs}}/{panel.what_to_do}").target_blank(True)
                     .type(model.DashboardLinkType.LINK)]))
    OPTIONS[panel.kind](built)
    # A bucket of Prometheus also counts all smaller values. In this format Grafana subtracts them.
    form = PromQueryFormat.HEATMAP if panel.kind == "heatmap" else PromQueryFormat.TIME_SERIES
    for letter, (expression, legend) in zip("ABCDEFGH", panel.queries):
        built.with_target(prometheus.Dataquery().expr(expression).format(form).legend_format(legend).ref_id(letter))
    return built


def board_of(name, title, text, rows, depth):
    board = (dashboard.Dashboard(title).uid(name).description(text).tags(["nsa"]).readonly().refresh("10s")
             .time("now-1h", "now").tooltip(model.DashboardCursorSync.CROSSHAIR)
             .link(dashboard.DashboardLink("Other dashboards").tags(["nsa"]).as_dropdown(True).include_vars(True).keep_time(True)
                   .type(model.DashboardLinkType.DASHBOARDS))
             .with_variable(dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus")))
    for variable, label, query in CHAIN[:depth]:
        board.with_variable(dashboard.QueryVariable(variable).label(label).query(query).datasource(SOURCE)
                            .refresh(model.VariableRefresh.ON_TIME_RANGE_CHANGED).sort(model.VariableSort.ALPHABETICAL_ASC)
                            .multi(True).include_all(True).all_value(".+"))
    # Where people read the docs: the address of a web server. Relative paths stay within Grafana.
    board.with_variable(dashboard.TextBoxVariable("docs").label("Docs").default_value("docs"))
    for mark, colour, expression in panels.ANNOTATIONS if depth > 2 else []:
        board.annotation(dashboard.AnnotationQuery().name(mark).datasource(SOURCE).enable(True).icon_color(colour)
                         .expr(expression))
    number = 0
    for row, row_panels in rows:
        number += 1
        board.with_row(dashboard.Row(row).id(number))
        for panel in row_panels:
            number += 1
            board.with_panel(panel_of(panel, number))
    return schema.encode(board.build())


def main():
    check, stale = "--check" in sys.argv[1:], []
    wanted = {f"{board[0]}.json": board_of(*board) for board in panels.BOARDS}
    for name, text in wanted.items():
        faults = schema.faults_of(text) + schema.unseen(text)
        if faults:
            sys.exit(f"error: {name} is not what Grafana's schema takes:\n" + "\n".join(faults))
        path = FOLDER / name
        if check and (not path.exists() or path.read_text() != text):
            stale.append(name)
        if not check:
            path.write_text(text)
    others = sorted(p.name for p in FOLDER.glob("*.json") if p.name not in wanted)
    if stale or others:
        sys.exit(f"error: stale: {', '.join(stale + others)}\n  hint: tools/dashboards, and commit what it writes")


main()
