"""What a person reads of a benchmark."""

import re

import little
import pytest

pytest.importorskip("matplotlib")

from echoic.agents.evaluation import report


def test_foreign_text_is_no_markdown():
    _, table = report._table("Title", [{"a": "![x](http://evil) `c` *b* _i_ | \\ <b>"}])
    assert r"\!\[x\](http://evil) \`c\` \*b\* \_i\_ \| \\ &lt;b&gt;" in table


@pytest.fixture
def folder(tmp_path):
    little.register()
    little.run(
        tmp_path,
        baselines=["fixed", "trained", "breaks"],
        num_seeds=3,
        generate_report=True,
        echo_rl_configs={"total_timesteps": 1000},
    )
    return tmp_path


def test_the_report_has_every_arm_every_reason_and_pictures(folder):
    markdown = (folder / "benchmark_report.md").read_text()
    for name in ("good", "fixed", "trained"):
        assert re.search(rf"\| guess \| {name} \| - \| - \| [0-9a-f]{{8}} \| 3 \| 9 \|", markdown)
    assert "1,000 (3 of 3)" in markdown
    # A bar within a cell would end it, and a tag would be one.
    assert r"the &lt;b&gt;optimizer&lt;/b&gt; \| diverged" in markdown
    pictures = re.findall(r"!\[.*\]\((.*)\)", markdown)
    assert pictures == ["plots/success.png", "plots/curves.png"]
    assert all((folder / name).read_bytes().startswith(b"\x89PNG") for name in pictures)


def test_trajectories_are_text_whatever_they_say(folder):
    page = (folder / "trajectories.html").read_text()
    assert "<script" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "Because of &lt;i&gt;that&lt;/i&gt;." in page
    assert "default-src 'none'" in page
    # Two of each cell: three methods, three seeds.
    assert page.count("<details>") == 18


def test_what_is_not_wanted_is_not_written(tmp_path):
    little.register()
    little.run(tmp_path, generate_report=True, generate_plots=False, save_detailed_results=False)
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"rows.jsonl", "benchmark_results.json", "benchmark_report.md"}
