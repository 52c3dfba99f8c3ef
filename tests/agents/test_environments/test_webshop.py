"""WebShop: upstream's reward, own goods, and a shop in which only buying the right thing pays."""

import json
import random
import subprocess
import sys

import numpy as np
import pytest
from conformance import (
    Chance,
    cannot_be_farmed,
    index_is_command,
    is_deterministic,
    is_gymnasium,
    is_hard_for_chance,
    is_patient,
    is_solved,
    play,
)
from echoic.agents.environments import WebShopConfig, WebShopEnvironment, make_environment
from echoic.agents.environments.web import (
    BM25,
    LEVELS,
    is_met,
    open_shop,
    read_rows,
    reward_of,
    rows_of,
    title_score,
    token_set_ratio,
    type_reward,
)
from echoic.errors import ArgumentError


def make(**settings):
    return WebShopEnvironment(
        WebShopConfig(timeout_penalty=0.0, **{"num_products": 120, **settings})
    )


def test_it_conforms():
    is_gymnasium(make)
    is_solved(make, range(20), steps=20)
    is_deterministic(make)
    is_patient(make)
    cannot_be_farmed(make, range(5), most=1.0)
    index_is_command(make)
    is_hard_for_chance(make, range(40))


def test_every_generated_goal_can_be_met():
    for kind in ("electronics", "clothing", "home", "beauty", "grocery"):
        shop = make(website_type=kind, num_products=18)
        for index in range(len(shop.goals)):
            shop.reset(options={"goal": index})
            ended, steps = False, 0
            while not ended and steps < 20:
                _, reward, ended, _, info = shop.step(shop.expert())
                steps += 1
            assert (reward, info["success"]) == (1.0, True), shop.goals[index]


def walk(shop, *commands):
    for command in commands:
        observation, reward, ended, _, info = shop.step(command)
        assert info["valid"], command
    return observation["text"], reward, ended, info


def test_pages_lead_where_their_buttons_say():
    shop = make()
    start = shop.reset(seed=0)[0]["text"]
    assert start == f"WebShop [SEP] Instruction: [SEP] {shop._goal.instruction} [SEP] Search"
    text, *_, info = walk(shop, "search[headphones]")
    assert "Page 1 (Total results: 20) [SEP] Next >" in text
    assert "< Prev" not in text
    first = info["commands"][0]
    text = walk(shop, "click[Next >]")[0]
    assert "Page 2" in text
    assert "Next >" not in text
    assert walk(shop, "click[< prev]")[0].count("Page 1") == 1
    item = walk(shop, first)[0]
    assert item.endswith("Description [SEP] Features [SEP] Buy Now")
    assert walk(shop, "click[silver]", "click[features]")[0].count(" [SEP] ") > 3
    assert "Chosen: color: silver" in walk(shop, "click[< prev]")[0]
    assert "Page 1" in walk(shop, "click[< prev]")[0]
    assert walk(shop, "click[back to search]")[0] == start


@pytest.mark.parametrize(
    ("commands", "nonsense"),
    [
        ((), "click[buy now]"),
        ((), "click[e00000aa]"),
        (("search[headphones]",), "search[again]"),
        (("search[headphones]",), "click[silver]"),
        (("search[headphones]",), "click[< prev]"),
        (("search[headphones]",), "buy[headphones]"),
    ],
)
def test_what_can_not_be_clicked_here_changes_nothing(commands, nonsense):
    shop = make()
    shop.reset(seed=0)
    for command in commands:
        walk(shop, command)
    before = shop.state.observation
    _, reward, ended, _, info = shop.step(nonsense)
    assert (reward, ended, info["valid"]) == (0.0, False, False)
    assert shop._look() == before


def test_searching_pays_nothing_however_often():
    shop = make()
    shop.reset(seed=0)
    for _ in range(30):
        assert walk(shop, "search[headphones]", "click[back to search]")[1] == 0.0


def test_buying_ends_the_episode_and_pays_once():
    shop = make()
    shop.reset(seed=0)
    while not shop.state.done:
        shop.step(shop.expert())
    with pytest.raises(Exception, match="reset comes before step"):
        shop.step("click[buy now]")
    assert shop.state.info["parts"]["r_type"] == 1.0


def test_success_is_exactly_what_was_asked_for():
    shop = make()
    shop.reset(seed=0)
    walk(shop, shop.expert())
    walk(shop, shop.expert())
    _, reward, ended, info = walk(shop, "click[buy now]")
    assert ended
    assert 0.2 < reward < 1.0
    assert (info["score"], info["success"]) == (reward, False)


def test_debugging_searches_of_upstream_are_words_like_others():
    shop = make()
    shop.reset(seed=0)
    assert "Total results: 0" in walk(shop, "search[<r> qqq]")[0]


def test_commands_do_not_tell_the_item():
    shop = make()
    for seed in range(5):
        observation, info = shop.reset(seed=seed)
        said = " ".join([observation["text"], *info["commands"]]).lower()
        assert shop._goal.product.asin.lower() not in said
        assert shop._goal.product.name.lower() not in said


def test_items_that_may_be_looked_at_are_counted():
    shop = make(max_cart_items=2)
    shop.reset(seed=0)
    one, two, three = walk(shop, "search[headphones]")[3]["commands"][:3]
    walk(shop, one, "click[< prev]", two, "click[< prev]")
    text, *_ = walk(shop, three)
    assert text.startswith("You have looked at 2 items")
    assert "Buy Now" in walk(shop, one)[0]


def test_a_budget_bounds_goals_and_purchases():
    rich, poor = make(), make(budget_limit=50.0)
    prices = {one.asin: one.price for one in rich._shop.products}
    assert len(rich.goals) == 120 > len(poor.goals) > 0
    assert max(one.product.price for one in poor.goals) <= 50.0
    poor.reset(seed=0)
    commands = walk(poor, "search[headphones]")[3]["commands"]
    dear = next(c for c in commands if prices.get(c[6:-1].upper(), 0) > 50)
    text, reward, ended, _ = walk(poor, dear, "click[buy now]")
    assert (text.split(" [SEP]")[0], reward, ended) == (
        "That is more than your budget.",
        0.0,
        False,
    )


def test_search_finds_no_more_than_the_limit():
    shop = make(max_search_results=7)
    shop.reset(seed=0)
    assert "Total results: 7" in walk(shop, "search[headphones]")[0]


def test_training_and_evaluation_can_have_goals_of_their_own():
    train, test = make(goal_range=(0, 100)), make(goal_range=(100, 120))
    assert not {one.product.asin for one in train.goals} & {one.product.asin for one in test.goals}


def test_goals_and_prices_are_the_same_in_another_process():
    code = (
        "from echoic.agents.environments import make_environment\n"
        "shop = make_environment('webshop', num_products=30)\n"
        "print(shop.goals[0].instruction, shop._shop.products[7].price)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    shop = make(num_products=30)
    first = f"{shop.goals[0].instruction} {shop._shop.products[7].price}"
    assert ran.stdout.strip() == first
    assert make(num_products=30, catalogue_seed=1).goals[0] != shop.goals[0]


def test_prices_asked_for_are_one_of_the_next_steps_above():
    for goal in open_shop(rows_of("all", 200, 0), random.Random(0))[1]:
        above = goal.price_upper - goal.product.price
        assert 10 < above <= 40
        assert f"price lower than {goal.price_upper:.2f} dollars" in goal.instruction


def test_chance_hardly_earns_anything():
    shop = make()
    earned = [play(shop, Chance(), seed, 30).reward for seed in range(20)]
    assert np.mean(earned) < 0.4


# The reward, number by number.


@pytest.mark.parametrize(
    ("one", "other", "ratio"),
    [
        ("noise cancelling", "active noise cancelling", 100),
        ("Noise-Cancelling", "cancelling noise", 100),
        ("wireless", "wired", 62),
        ("water resistant", "water proof", 62),
        ("black", "", 0),
        ("café", "caf", 100),
        ("one_two", "one two", 100),
        ("x-large", ("size", "large"), 83),
    ],
)
def test_ratios_are_those_of_thefuzz(one, other, ratio):
    assert token_set_ratio(one, other) == ratio


def test_ratios_agree_with_thefuzz_on_many_texts():
    fuzz = pytest.importorskip("thefuzz.fuzz")
    rng = random.Random(0)
    for _ in range(3000):
        one, other = ("".join(rng.choices("abcAB -_,é", k=rng.randrange(12))) for _ in range(2))
        assert token_set_ratio(one, other) == fuzz.token_set_ratio(one, other), (one, other)


@pytest.mark.parametrize(
    ("score", "same_query", "levels", "r_type"),
    [
        (1.0, True, 3, 1.0),
        (0.25, False, 0, 1.0),
        (0.2, False, 1, 0.5),
        (0.2, False, 2, 1.0),
        (0.2, True, 0, 1.0),
        (0.09, True, 3, 0.1),
        (0.0, True, 3, 0.0),
    ],
)
def test_the_type_of_an_item_counts_as_upstream(score, same_query, levels, r_type):
    assert type_reward(score, same_query=same_query, levels=levels) == r_type


def test_title_scores_count_wanted_nouns_as_often_as_they_are_there():
    assert title_score("tea", "tea tea cup") == pytest.approx(1 / 3)
    assert title_score("tea", "") == 0.2


@pytest.mark.parametrize(
    ("option", "chosen", "met"),
    [
        ("large", "large", True),
        ("large", "small", False),
        ("large", "x-large", True),  # All words of one are among the other's.
        ("black forest", "black", True),  # The same first colour.
        ("navy blue", "dark blue", True),  # Blue comes before dark and navy.
        (("color", "black"), "black forest", True),
        (("size", "10 inch"), "10 inch", True),
        (("size", "10 inch"), "11 inch", False),
        (("scent", "rosemary"), "rosemary", False),  # A rose, but only on one side.
    ],
)
def test_options_are_compared_as_upstream(option, chosen, met):
    assert is_met(option, [chosen]) is met


def shelf(**changes):
    row = {
        "asin": "B000000001",
        "name": "Acme Lamp",
        "query": "Table Lamp ",
        "category": "garden",
        "product_category": LEVELS.join(["Home ", " Lighting ", " Lamps"]),
        "full_description": "A lamp with a dimmer.",
        "small_description": ["Runs on batteries"],
        "pricing": "$19.50",
        "images": ["x"],
        "customization_options": {"Color": [{"value": " Red/Blue "}], "Size": None},
        **changes,
    }
    told = {"B000000001": {"attributes": ["touch control"]}}
    human = {
        "B000000001": [
            {
                "instruction": "A lamp please.",
                "instruction_attributes": ["touch control", "batteries", "dimmer"],
                "instruction_options": ["red | blue"],
            },
            {"instruction": "Skipped", "instruction_attributes": [], "instruction_options": []},
        ]
    }
    return [row], told, human


def write(folder, items, told, human):
    (folder / "items_shuffle_1000.json").write_text(json.dumps(items))
    (folder / "items_ins_v2_1000.json").write_text(json.dumps(told))
    (folder / "items_human_ins.json").write_text(json.dumps(human))


def test_the_reward_adds_what_is_met(tmp_path):
    write(tmp_path, *shelf())
    [lamp], [goal] = open_shop(read_rows(tmp_path), random.Random(0))
    assert (lamp.options, lamp.query) == ({"color": ("red | blue",)}, "table lamp")
    full = reward_of(lamp, goal, 19.5, {"color": "red | blue"})
    assert (full.total, full.attributes, full.options, full.price) == (1.0, 3, 1, True)
    assert reward_of(lamp, goal, 19.5, {}).total == 4 / 5
    assert reward_of(lamp, goal, 1000.0, {}).total == 3 / 5
    row = shelf(name="Bolt Chair", query="chair", full_description="", small_description=[])[0]
    [other], _ = open_shop((row, {}, {}), random.Random(0))
    assert reward_of(other, goal, 19.5, {"color": "red | blue"}).total == 0.0


def test_the_official_files_make_a_shop(tmp_path):
    write(tmp_path, *shelf())
    shop = make_environment("webshop", path=str(tmp_path), website_type="home")
    shop.reset(seed=0)
    while not shop.state.done:
        shop.step(shop.expert())
    assert shop.state.info["success"]
    with pytest.raises(ArgumentError, match="nothing of type 'electronics'"):
        make_environment("webshop", path=str(tmp_path))


def test_prices_are_read_as_upstream(tmp_path):
    for pricing, low, high, tag in (
        ("", 100.0, 100.0, "$100.0"),
        ("$1,019.50", 1019.5, 1019.5, "$1019.5"),
        ("$10.00$20.00", 10.0, 20.0, "$10.0 to $20.0"),
    ):
        write(tmp_path, *shelf(pricing=pricing))
        [lamp], _ = open_shop(read_rows(tmp_path), random.Random(0))
        assert low <= lamp.price <= high
        assert lamp.price_tag == tag


def test_identifiers_that_upstream_leaves_out_are_left_out(tmp_path):
    items, told, human = shelf()
    twice = [items[0], items[0], {**items[0], "asin": "nan"}, {**items[0], "asin": "B" * 11}]
    write(tmp_path, twice, told, human)
    assert len(open_shop(read_rows(tmp_path), random.Random(0))[0]) == 1


@pytest.mark.parametrize(
    ("changes", "more", "human", "message"),
    [
        ({"name": None}, {}, [], "item 0 has another shape: .*None.* is no list of texts"),
        ({"asin": 7}, {}, [], "item 0 has another shape"),
        ({"small_description": [None]}, {}, [], "item 0 has another shape"),
        ({"pricing": "cheap"}, {}, [], r"there is no price like '\$12.50', but 'cheap'"),
        ({"customization_options": {"color": ["red"]}}, {}, [], "item 0 has another shape"),
        ({}, [1], [], "item 0 has another shape"),
        ({}, {"attributes": 5}, [], "item 0 has another shape"),
        ({}, {}, {"a": 1}, "an instruction for B000000001 has another shape"),
        (
            {},
            {},
            [{"instruction": "x", "instruction_attributes": "soft", "instruction_options": []}],
            "an instruction for B000000001 has another shape: 'soft' is no list of texts",
        ),
    ],
)
def test_rows_of_another_shape_are_refused(tmp_path, changes, more, human, message):
    items, _, _ = shelf(**changes)
    write(tmp_path, items, {"B000000001": more}, {"B000000001": human})
    with pytest.raises(ArgumentError, match=message):
        open_shop(read_rows(tmp_path), random.Random(0))


def test_files_of_another_shape_are_refused(tmp_path):
    with pytest.raises(ArgumentError, match="there is no folder"):
        read_rows(tmp_path / "none")
    with pytest.raises(
        ArgumentError, match=r"must have one file items_shuffle\*.json; it has none"
    ):
        read_rows(tmp_path)
    write(tmp_path, *shelf())
    (tmp_path / "items_human_ins.json").write_text("{")
    with pytest.raises(ArgumentError, match=r"items_human_ins.json has another shape"):
        read_rows(tmp_path)
    write(tmp_path, {}, {}, {})
    with pytest.raises(ArgumentError, match="expected a list, got a dict"):
        read_rows(tmp_path)
    write(tmp_path, [], {}, {})
    with pytest.raises(ArgumentError, match="there are no items"):
        open_shop(read_rows(tmp_path), random.Random(0))
    items, more, human = shelf()
    write(tmp_path, [items[0], {**items[0], "asin": "b000000001"}], more, human)
    with pytest.raises(ArgumentError, match="differ by case only"):
        open_shop(read_rows(tmp_path), random.Random(0))


def test_scores_of_the_search_are_lucenes():
    texts = ["red lamp red", "blue lamp", "blue chair of oak"]
    index = BM25(texts)
    found, scores = index._index["red"]
    lengths, tf, idf = np.array([3, 2, 3]), 2.0, np.log(1 + 2.5 / 1.5)
    norm = 0.9 * (0.6 + 0.4 * 3 / lengths.mean())
    assert list(found) == [0]
    assert scores[0] == pytest.approx(idf * tf / (tf + norm))
    assert index.search("lamps", 3) == [1, 0]
    assert index.search("nothing of the kind", 3) == []
    with pytest.raises(ArgumentError):
        BM25([])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"website_type": "cars"}, "website_type must be one of electronics, fashion"),
        ({"max_search_results": 0}, "max_search_results must be at least 1, not 0"),
        ({"max_cart_items": 0}, "max_cart_items must be at least 1, not 0"),
        ({"goal_range": (5, 5)}, "goal_range must be first and last"),
        ({"budget_limit": 0.0}, "budget_limit must be above 0"),
    ],
)
def test_settings_are_checked(settings, message):
    with pytest.raises(ArgumentError, match=message):
        WebShopConfig(**settings)
    with pytest.raises(ArgumentError, match="no goal is left"):
        make(goal_range=(500, 600))
    with pytest.raises(ArgumentError, match="goal must be from 0 to 119, not 120"):
        make().reset(options={"goal": 120})
