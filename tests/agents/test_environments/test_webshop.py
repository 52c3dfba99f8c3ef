"""WebShop: upstream's reward, own goods, and a shop in which only buying the right thing pays."""

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
from echoic.agents.environments import WebShopConfig, WebShopEnvironment
from echoic.agents.environments.web import (
    Shop,
    alike,
    generate,
    index_of,
    is_met,
    reward_of,
    type_reward,
    words_of,
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
    for goal in generate("all", 200, 0)[1]:
        above = goal.price_upper - goal.product.price
        assert 10 < above <= 40
        assert f"price lower than {goal.price_upper:.2f} dollars" in goal.instruction


def test_chance_hardly_earns_anything():
    shop = make()
    earned = [play(shop, Chance(), seed, 30).reward for seed in range(20)]
    assert np.mean(earned) < 0.4


# The reward, number by number.


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("noise cancelling", "active noise cancelling", True),
        ("Noise-Cancelling", "cancelling noise", True),
        ("wireless", "wired", False),
        ("water resistant", "water proof", False),
        ("one_two", "one two", True),
    ],
)
def test_texts_are_alike_by_their_words(one, other, same):
    assert alike(one, other) is same


@pytest.mark.parametrize(
    ("name", "query", "levels", "r_type"),
    [
        ("Hose B C D E F G H I J", "hose", {"Home", "Outdoor"}, 1.0),
        ("Garden Hose Nozzle", "x", set(), 1.0),
        ("Hose", "x", {"Home"}, 0.5),
        ("Hose", "x", {"Home", "Outdoor"}, 1.0),
        ("Hose", "hose", set(), 1.0),
        ("Chair", "hose", {"Home", "Outdoor"}, 0.0),
    ],
)
def test_the_type_of_an_item_counts_as_upstream(name, query, levels, r_type):
    wanted = generate("garden", 4, 0)[0][3]._replace(
        name="Emika A123 Spray Nozzle Garden Hose", query="hose", levels={"Home", "Outdoor", "x"}
    )
    bought = wanted._replace(name=name, query=query, levels=levels)
    assert type_reward(bought, wanted) == r_type
    many = wanted._replace(name="Hose Aa Bb Cc Dd Ee Ff Gg Hh Ii Jj")
    assert type_reward(wanted._replace(name="Hose", query=query), many) == 0.1


@pytest.mark.parametrize(
    ("option", "chosen", "met"),
    [
        ("large", "large", True),
        ("large", "small", False),
        ("large", "x-large", True),  # All words of one are among the other's.
        ("black forest", "black", True),  # The same first colour.
        ("navy blue", "dark blue", True),  # Blue comes before dark and navy.
        ("10 inch", "11 inch", False),
    ],
)
def test_options_are_compared_as_upstream(option, chosen, met):
    assert is_met(option, [chosen]) is met


def test_the_reward_adds_what_is_met():
    _, goals = generate("garden", 40, 0)
    goal = next(one for one in goals if one.product.query == "garden hose")
    hose, chosen = goal.product, {str(i): value for i, value in enumerate(goal.options)}
    full = reward_of(hose, goal, chosen)
    assert (full.total, full.attributes, full.options, full.price) == (1.0, 2, 2, True)
    assert reward_of(hose, goal, {}).total == 3 / 5
    assert reward_of(hose._replace(price=1000.0), goal, {}).total == 2 / 5
    plain = hose._replace(attributes=[], bullets=[], description="")
    assert reward_of(plain, goal, {}).attributes == sum(
        a in hose.name.lower() for a in goal.attributes
    )
    other = hose._replace(name="Bolt Chair", query="chair")
    assert reward_of(other, goal, chosen).total == 0.0


def test_words_are_compared_in_the_singular():
    assert words_of("The boxes for 2 Batteries and a glass") == ["box", "2", "battery", "glass"]


def test_scores_of_the_search_are_lucenes():
    texts = ["red lamp red", "blue lamp", "blue chair of oak"]
    found, scores = index_of(texts)["red"]
    lengths, tf, idf = np.array([3, 2, 3]), 2.0, np.log(1 + 2.5 / 1.5)
    norm = 0.9 * (0.6 + 0.4 * 3 / lengths.mean())
    assert list(found) == [0]
    assert scores[0] == pytest.approx(idf * tf / (tf + norm))
    shop = Shop("garden", 8, 0)
    assert {one.query for one in shop.search("lamps", 3)} == {"table lamp"}
    assert shop.search("nothing of the kind", 3) == []


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"website_type": "cars"}, "website_type must be one of electronics, fashion"),
        ({"max_search_results": 0}, "max_search_results must be at least 1, not 0"),
        ({"max_cart_items": 0}, "max_cart_items must be at least 1, not 0"),
        ({"budget_limit": 0.0}, "budget_limit must be above 0"),
    ],
)
def test_settings_are_checked(settings, message):
    with pytest.raises(ArgumentError, match=message):
        WebShopConfig(**settings)
    with pytest.raises(ArgumentError, match=r"no goal costs 1\.0"):
        make(budget_limit=1.0)
    with pytest.raises(ArgumentError, match="goal must be from 0 to 119, not 120"):
        make().reset(options={"goal": 120})
