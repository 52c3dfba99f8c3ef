"""What a person reads of a benchmark."""

import re

import little
import pytest

pytest.importorskip("matplotlib")

from echoic.agents.evaluation import report


def test_foreign_text_is_no_markdown():
    rows = [{"a": "![x](http://evil) `c` *b* _i_ | \\ <b>"}]
    _, table = report._table("Title", ["a"], rows)
    assert r"\!\[x\](http://evil) \`c\` \*b\* \_i\_ \| \\ &lt;b&gt;" in table


def test_the_report_has_every_arm_every_reason_and_a_picture(tmp_path):
    little.register()
    little.run(
        tmp_path,
        baselines=["fixed", "trained", "breaks"],
        num_seeds=3,
        generate_report=True,
        echo_rl_configs={"total_timesteps": 1000},
    )
    markdown = (tmp_path / "benchmark_report.md").read_text()
    for name in ("good", "fixed", "trained"):
        assert re.search(rf"\| guess \| {name} \| - \| - \| [0-9a-f]{{8}} \| 3 \| 9 \|", markdown)
    assert "1,000 (3 of 3)" in markdown
    # A bar within a cell would end it, and a tag would be one.
    assert r"the &lt;b&gt;optimizer&lt;/b&gt; \| diverged" in markdown
    assert re.findall(r"!\[.*\]\((.*)\)", markdown) == ["plots/success.png"]
    assert (tmp_path / "plots/success.png").read_bytes().startswith(b"\x89PNG")


def test_what_is_not_wanted_is_not_written(tmp_path):
    little.register()
    little.run(tmp_path, generate_report=True, generate_plots=False)
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"rows.jsonl", "benchmark_results.json", "benchmark_report.md"}
