//! Writes inputs made of real frames into the folder that is given, for fuzzing to start from. After the
//! protocol has changed, and after `make fuzz` for a good while, `make fuzz-corpus` runs it, and packs what
//! is worth keeping of both.

use std::io;
use std::path::Path;
use std::sync::Arc;

use echoic_fuzz::ledgers::{append, started, want};
use echoic_fuzz::spec;
use echoic_net::server::STREAM;
use echoic_net::wire::frame::{Control, DataHead, HEADER_BYTES};
use echoic_net::wire::handshake::{
    Challenge, Hello, Offer, Open, Purpose, RefusalCode, Refused, Welcome,
};
use echoic_net::wire::observed::{Connected, Family, Kind, Number, Observation};
use echoic_net::wire::rollouts::{Bulk, Changes, Outcomes, Wish};
use echoic_net::wire::tables::{
    Answer, Area, BatchHead, FailureCode, ItemHead, Layout, Operation, Release, Request, RowsHead,
    SignatureHead, SliceHead, TableEntry, write_chunk,
};
use echoic_net::wire::{VERSION, preface};
use echoic_replay::WaitReason;
use echoic_replay::chunk::{Chunk, ColumnKind};
use echoic_replay::codec::Encode;
use echoic_replay::encoding::{Encoding, Policy};
use echoic_replay::rollouts::batch::Form::Packed;
use echoic_replay::rollouts::codec::{AppendHead, FinishHead};
use echoic_replay::rollouts::item::{ColumnUpdate, Item, Run, Updates};
use echoic_replay::rollouts::ledger::{
    Balance, Blocked, Change, ChangeError, GroupStatus, Hold, Lease, Outcome, Reservation, Reserve,
    Size, Update, Want,
};
use echoic_replay::rollouts::table::CallError;
use echoic_replay::table::{Form, Infos};
use echoic_replay::trajectory::{Column, Signature};
use echoic_replay::{Dtype, Episode, Leaf, Spec};

fn bytes(write: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut out = Vec::new();
    write(&mut out);
    out
}

/// One leaf of each dtype.
fn all_dtypes() -> Spec {
    let dtypes = [
        Dtype::Bool,
        Dtype::Int(1),
        Dtype::UInt(2),
        Dtype::Float(4),
        Dtype::BFloat16,
        Dtype::Complex(16),
        Dtype::Bytes(5),
    ];
    let leaf = |(number, dtype)| Leaf {
        path: format!("leaves/{number}"),
        dtype,
        shape: (0..number).map(|axis| axis + 2).collect(),
    };
    Spec::new(dtypes.into_iter().enumerate().map(leaf).collect()).expect("a good spec")
}

fn open(purpose: Purpose, spec: Spec) -> Open {
    Open {
        proof: [0; 32],
        purpose,
        producer: [9; 16],
        epoch: 3,
        first: 0,
        stream: STREAM.into(),
        spec: (purpose != Purpose::Probe).then_some(spec),
        name: "host:1".into(),
    }
}

fn welcome(next: u64, spec: Option<Spec>) -> Welcome {
    Welcome {
        proof: [0; 32],
        instance: [4; 16],
        next,
        limit: 1000,
        heartbeat_ms: 5000,
        release: "0.1.0".into(),
        offer: spec.map_or(Offer::Known, Offer::Spec),
    }
}

fn data(first: u64, count: u32, sample: usize) -> Vec<u8> {
    let mut frame = DataHead { first, count }.bytes(sample).expect("a small frame").to_vec();
    frame.resize(frame.len() + count as usize * sample, 7);
    frame
}

fn controls() -> Vec<Vec<u8>> {
    let text = "the server is closing".to_owned();
    let ack = |next, stall| Control::Ack { next, limit: 1000, stall };
    [
        ack(0, None),
        ack(2, Some(WaitReason::Capacity)),
        ack(5, Some(WaitReason::Leased)),
        Control::Ping(1),
        Control::Pong(0),
        Control::Goodbye { text },
    ]
    .map(|control| bytes(|out| control.write(out)))
    .into()
}

/// What clients say to a server whose samples have this size; the first byte tells which server.
fn clients(which: u8, filling: usize) -> Vec<Vec<u8>> {
    let start = [&preface(VERSION)[..], &bytes(|out| Hello { nonce: [1; 32] }.write(out))].concat();
    let opened =
        |purpose, spec| [&start[..], &bytes(|out| open(purpose, spec).write(out))].concat();
    let producing = opened(Purpose::Produce, spec(filling));
    let sample = 8 + filling;
    let mut said = vec![
        start.clone(),
        producing.clone(),
        opened(Purpose::Probe, spec(filling)),
        opened(Purpose::Memory, spec(filling)),
        opened(Purpose::Produce, all_dtypes()),
        [&producing[..], &data(0, 3, sample), &data(2, 3, sample)].concat(),
        [&producing[..], &data(0, 1, sample)[..sample]].concat(),
        b"GET / HTTP/1.1\r\n\r\n".to_vec(),
        preface(VERSION + 1).to_vec(),
    ];
    said.extend(controls().iter().map(|control| [&producing[..], control].concat()));
    let cuts = [0u8, 64, 64 + 128, 5 + 8 * 2, 7 + 64];
    let cut = |cut: u8| said.iter().map(move |said| [&[which, cut], &said[..]].concat());
    cuts.into_iter().flat_map(cut).collect()
}

/// What servers say to a client; the first bytes tell what it does, and how links cut.
fn servers() -> Vec<Vec<u8>> {
    let challenge = |wants_proof| Challenge { nonce: [2; 32], wants_proof };
    let start = [&preface(VERSION)[..], &bytes(|out| challenge(false).write(out))].concat();
    let answered = |answer: &[u8]| [&start[..], answer].concat();
    let welcomed = answered(&bytes(|out| welcome(0, None).write(out)));
    let refused = Refused { code: RefusalCode::Limit, text: "too many".into() };
    let probed = [
        bytes(|out| welcome(0, Some(spec(12))).write(out)),
        bytes(|out| Control::Pong(0).write(out)),
        bytes(|out| Control::Pong(1).write(out)),
    ];
    let mut said = vec![
        start.clone(),
        welcomed.clone(),
        answered(&probed.concat()),
        answered(&bytes(|out| refused.write(out))),
        [&welcomed[..], &controls().concat()].concat(),
    ];
    said.extend(controls().iter().map(|control| [&welcomed[..], control].concat()));
    let ways = [(0, 0), (1, 0), (0b10100, 3), (0b10110, 3 + 8 * 2), (0b11100, 4 + 8 * 4), (1, 2)];
    let way =
        |(how, cuts): (u8, u8)| said.iter().map(move |said| [&[how, cuts], &said[..]].concat());
    ways.into_iter().flat_map(way).collect()
}

/// Chunks of each dtype in each form, some of which know their episode; the first byte says that the
/// checksum is made right.
fn chunks() -> Vec<Vec<u8>> {
    let chunk = |leaf: &Leaf, encoding| {
        let kind = Arc::new(ColumnKind { dtype: leaf.dtype, shape: vec![3] });
        let raw = (0..3 * 20 * leaf.dtype.itemsize()).map(|at| (at / 40) as u8).collect();
        let chunk = Chunk::encode(kind, 20, raw, Policy::Always(encoding)).expect("a good chunk");
        let is_odd = leaf.dtype.itemsize() % 2 == 1;
        let chunk = chunk.of_episode(Episode::from_number(if is_odd { 7 } else { 0 }));
        [vec![1], bytes(|out| chunk.write(out))].concat()
    };
    let each = |leaf: &Leaf| Encoding::ALL.map(|encoding| chunk(leaf, encoding));
    all_dtypes().leaves().iter().flat_map(each).collect()
}

fn signature() -> Signature {
    let kind = ColumnKind { dtype: Dtype::UInt(2), shape: vec![3] };
    let column = Column { path: "x".into(), kind, squeezed: false };
    Signature { structure: "[*]".into(), columns: vec![column] }
}

/// Frames of inserts into the tables of the target.
fn inserts() -> Vec<Vec<u8>> {
    let rows = |first, table, row: usize| {
        let head = RowsHead { first, table, count: 2, version: (table > 0).then_some(4) };
        bytes(|out| {
            head.write(out, &[1.0, 0.5], row).expect("small rows");
            out.extend(vec![7; 2 * row]);
        })
    };
    let kind = Arc::new(ColumnKind { dtype: Dtype::UInt(2), shape: vec![3] });
    let chunk = Chunk::raw(kind, 2, vec![5; 12].into()).expect("a good chunk");
    let slice = SliceHead { chunk: 4, offset: 0, len: 2 };
    let item = ItemHead {
        sequence: 0,
        table: 1,
        priority: 1.0,
        version: None,
        signature: 3,
        columns: vec![vec![slice]],
    };
    vec![
        rows(0, 0, 12),
        rows(2, 2, 8),
        bytes(|out| SignatureHead::write(out, 3, &signature())),
        bytes(|out| assert!(write_chunk(out, 4, |out| chunk.write(out)))),
        bytes(|out| item.write(out)),
        bytes(|out| Release::write(out, &[4, 5])),
    ]
}

/// A share of a batch of rollouts.
fn wish(area: Option<Area>) -> Wish {
    let (size, balance) = (Size::Groups(2), Balance::Tokens);
    let want = Want { size, rank: 0, ranks: 2, balance, lease_ms: Some(9), width: 0 };
    Wish { want, form: Packed { width: 64 }, timeout_ms: Some(0), area }
}

/// An item of four tokens.
fn changes(bulk: Bulk<'static>) -> Changes<'static> {
    let mut head = Vec::new();
    let hold = Hold { group: 0, attempt: 0 };
    let runs = &[Run { version: 0, tokens: 4 }];
    let (item, sequence, priority, tokens, bytes) = (0, 0, 1.0, 4, 4);
    let finish: Option<FinishHead<'_>> = Some(((&[], 0), &[]));
    AppendHead { hold, item, sequence, priority, tokens, bytes, absent: 0, runs, finish }
        .encode(&mut head);
    Changes { timeout_ms: Some(0), count: 1, head: head.into(), bulk }
}

/// What is asked of rollout tables.
fn rollout_asks() -> Vec<Vec<u8>> {
    let area = Area { start: 0, len: 4 };
    let operations = [
        Operation::RolloutList,
        Operation::RolloutInfo,
        Operation::RolloutPart([5, 6][..].into()),
        Operation::RolloutSample(wish(None)),
        Operation::RolloutSample(wish(Some(area))),
        Operation::RolloutChanges(changes(Bulk::Inline([1, 2, 3, 4][..].into()))),
        Operation::RolloutChanges(changes(Bulk::Area(area))),
    ];
    let request = |operation| Request { id: 1, table: 0, operation };
    operations.map(|operation| bytes(|out| request(operation).write(out))).into()
}

/// What is answered about them, each with its place among the kinds of the target.
fn rollout_answers() -> [(u8, Vec<u8>); 3] {
    let error = CallError::TimedOut(Blocked::Leased(4));
    [
        (7, Answer::RolloutTables { id: 3, configs: vec![] }),
        (8, Answer::RolloutOutcomes { id: 3, outcomes: outcomes() }),
        (10, Answer::RolloutRefused { id: 3, error }),
    ]
    .map(|(kind, answer)| (kind, bytes(|out| answer.write(out))))
}

fn asks() -> Vec<Vec<u8>> {
    let keys = vec![1, 1 << 32];
    let operations = [
        Operation::Sample { count: 3, timeout_ms: Some(0), area: None },
        Operation::Sample { count: 1, timeout_ms: None, area: None },
        Operation::Sample { count: 1, timeout_ms: None, area: Some(Area { start: 0, len: 64 }) },
        Operation::List { place: 0, most: 9 },
        Operation::Get { keys: vec![3].into() },
        Operation::Checkpoint,
        Operation::Update { keys: keys.clone().into(), priorities: vec![0.0, 2.0].into() },
        Operation::Delete { keys: keys.into() },
        Operation::Reset,
        Operation::Pause,
        Operation::Resume,
        Operation::Advance { version: 9 },
        Operation::Info,
        Operation::CanSample { count: 1 },
        Operation::CanInsert { count: 1 },
        Operation::Cancel,
    ];
    let request = |operation| Request { id: 1, table: 0, operation };
    operations.map(|operation| bytes(|out| request(operation).write(out))).into()
}

/// What is said to tables; the first byte tells on what connection.
fn tables() -> Vec<Vec<u8>> {
    let (inserts, asks) = (inserts(), asks());
    let items = inserts[2..].concat();
    let mut said = vec![[&[0, 0], &items[..]].concat(), [&[0, 0], &inserts.concat()[..]].concat()];
    said.extend(inserts.iter().map(|frame| [&[0, 5], &frame[..]].concat()));
    said.extend(asks.iter().map(|frame| [&[1, 0], &frame[..]].concat()));
    said.push([&[1, 1], &asks.concat()[..]].concat());
    said
}

/// A server with one number and one connection.
fn observation() -> Observation {
    let labels = vec![("table".into(), "replay".to_owned())];
    let numbers = vec![Number { suffix: "_sum".into(), labels, value: 0.5 }];
    let (name, help) = ("echoic_table_items".into(), "Items in the table.".into());
    let connection = Connected {
        listener: "tcp://127.0.0.1:1".into(),
        id: 1,
        peer: "127.0.0.1:2".into(),
        name: "host:1".into(),
        age: 3.0,
        samples: 4,
        bytes: 5,
        reads: 6,
        duplicates: 7,
        blocked_time: 8.0,
        purpose: "push".into(),
        blocked_by: "RATIO".into(),
    };
    Observation {
        incarnation: 10,
        age: 9.0,
        families: vec![Family { name, help, kind: Kind::Histogram, numbers }],
        connections: vec![connection],
    }
}

/// One of several kinds.
fn outcomes() -> Outcomes {
    let reservation = Reservation {
        hold: Hold { group: 1, attempt: 2 },
        key: "key".into(),
        version: 3,
        ttl_ms: 4,
    };
    vec![
        Ok(Outcome::Done),
        Ok(Outcome::Reserved(vec![reservation.clone()])),
        Ok(Outcome::Resumed(reservation, vec![Item::default()])),
        Ok(Outcome::Appended(GroupStatus::Stale)),
        Ok(Outcome::Count(5)),
        Err(ChangeError::Unknown(6)),
        Err(ChangeError::Value {
            what: "item".into(),
            expected: "below 2".into(),
            got: "7".into(),
        }),
    ]
}

/// Payloads of frames; the first byte tells of which.
fn table_frames() -> Vec<Vec<u8>> {
    let behind = |which: u8, frame: &[u8]| [&[which], &frame[HEADER_BYTES..]].concat();
    let mut frames: Vec<_> = asks().iter().map(|frame| behind(0, frame)).collect();
    let (code, text) = (FailureCode::TimedOut, "late".to_owned());
    for (kind, answer) in [
        (1, Answer::Done { id: 3, count: 4 }),
        (2, Answer::Failed { id: 3, code, stall: Some(WaitReason::MinSize), text }),
        (3, Answer::Numbers { id: 3, numbers: vec![] }),
        (5, Answer::Listed { id: 3, next: Some(2), infos: Infos::default() }),
        (6, Answer::Observed { id: 3, observation: observation() }),
        (4, Answer::Saved { id: 3, path: "/checkpoints/1".to_owned() }),
    ] {
        frames.push(behind(1 + 8 * kind, &bytes(|out| answer.write(out))));
    }
    let infos = Infos {
        keys: vec![8],
        probabilities: vec![0.5],
        priorities: vec![1.0],
        times_sampled: vec![2],
        versions: vec![3],
        table_size: 9,
        total_weight: 4.5,
    };
    let layouts = [
        Layout::Rows,
        Layout::Trajectories { signature: Arc::new(signature()), steps: vec![vec![2]] },
    ];
    for layout in layouts {
        let payload = bytes(|out| BatchHead::write(out, 6, &infos, &layout));
        frames.push([&[2], &payload[..]].concat());
    }
    let inserts = inserts();
    let kinds = [3 + 8 * 12, 3 + 8 * 8, 5, 7, 4, 6];
    frames.extend(kinds.iter().zip(&inserts).map(|(kind, frame)| behind(*kind, frame)));
    let entry = |form| TableEntry {
        name: "replay".into(),
        form,
        structure: "[*]".into(),
        capacity: 10,
        metadata: b"kept".into(),
    };
    let list = [
        entry(Form::Rows(spec(3))),
        entry(Form::Trajectories(None)),
        entry(Form::Trajectories(Some(all_dtypes()))),
    ];
    frames.push([&[7], &bytes(|out| list.encode(out))[..]].concat());
    frames.extend(rollout_asks().iter().map(|frame| behind(0, frame)));
    frames.extend(rollout_answers().iter().map(|(kind, frame)| behind(1 + 8 * kind, frame)));
    frames
}

/// Filters of groups, before the numbers of an item each.
fn filters() -> Vec<Vec<u8>> {
    [
        "spread(reward) > 0 and mean(length) < 2048",
        "min(reward)>=-.5 and std(length)!=1e-3 and count() == 4",
        "max(\"scores/exact match\") > 0 and sum(reward) <= 7",
    ]
    .map(|text| [text.as_bytes(), &[0, 0, 1, 2, 3, 4, 0xF0, 7]].concat())
    .to_vec()
}

/// Tables of all kinds.
fn states() -> Vec<Vec<u8>> {
    let state = |choice: u8| {
        bytes(|out| {
            out.push(choice);
            started(choice).save().encode(out);
        })
    };
    (0..64).step_by(3).map(state).collect()
}

/// What may happen to a table, one thing after the other.
fn ledger_changes() -> Vec<Vec<u8>> {
    let hold = Hold { group: 6, attempt: 0 };
    let holds = vec![hold, Hold { group: 7, attempt: 0 }];
    let lease = Lease { batch: 1, rank: 0, attempt: 1 };
    let column = ColumnUpdate { column: 0, tokens: 3, bytes: Arc::new(vec![1; 3]) };
    let values = Updates { columns: vec![column], fields: vec![(0, vec![2; 4])] };
    let key = |key: &str| Reserve { count: 1, keys: vec![key.into()], ..Reserve::default() };
    let all = [
        Change::Reserve(Reserve {
            count: 3,
            version: Some(1),
            ttl_ms: Some(9),
            ..Reserve::default()
        }),
        Change::Reserve(key("named")),
        append(hold, 1, true),
        append(hold, 0, false),
        Change::Update(Update { hold, item: 0, values }),
        Change::Renew { holds: holds.clone() },
        Change::Status { hold },
        Change::Suspend { holds: holds.clone() },
        Change::Resume { source: "other".into(), ttl_ms: None },
        Change::Fail { holds },
        want(0, None),
        want(1, Some(4)),
        Change::Extend { lease, lease_ms: 8 },
        Change::Nack(lease),
        Change::Ack(lease),
        Change::Reprioritize { priorities: vec![(0, 2.0), (1, 0.0)] },
        Change::Remove { groups: vec![0, 3] },
        Change::Publish { version: 1 },
        Change::Deepen { depth: 1 },
        Change::Sample(Want {
            size: Size::Groups(1),
            rank: 0,
            ranks: 1,
            balance: Balance::Count,
            lease_ms: None,
            width: 0,
        }),
        Change::Restore { version: 0 },
        Change::AwaitVersion { above: 0 },
        Change::Pause { paused: true },
        Change::Tick,
    ];
    let written = |change: &Change| {
        let (mut head, mut bulk) = (Vec::new(), Vec::new());
        change.encode(&mut head);
        change.bulk().for_each(|piece| bulk.extend_from_slice(piece));
        [&(head.len() as u16).to_le_bytes()[..], &head, &bulk].concat()
    };
    let life: Vec<u8> = all.iter().flat_map(written).collect();
    let alone = all.iter().map(|change| [vec![4], written(change)].concat());
    alone.chain((0..128).step_by(9).map(|choice| [&[choice], &life[..]].concat())).collect()
}

fn save(target: &str, inputs: &[Vec<u8>]) -> io::Result<()> {
    let into = std::env::args_os().nth(1).ok_or_else(|| io::Error::other("Give a folder."))?;
    let folder = Path::new(&into).join(target);
    std::fs::create_dir_all(&folder)?;
    for (number, input) in inputs.iter().enumerate() {
        std::fs::write(folder.join(format!("seed-{number:03}")), input)?;
    }
    Ok(())
}

fn main() -> io::Result<()> {
    let mut frames = controls();
    frames.extend([preface(VERSION).to_vec(), data(5, 3, 20), data(0, 1, 0), data(1, 2, 1)]);
    save("frames", &frames)?;
    let payload = |kind: u8, frame: Vec<u8>| [&[kind], &frame[HEADER_BYTES..]].concat();
    let refused = |code| Refused { code, text: "no".into() };
    let mut handshake = vec![
        payload(0, bytes(|out| Hello { nonce: [1; 32] }.write(out))),
        payload(1, bytes(|out| Challenge { nonce: [1; 32], wants_proof: true }.write(out))),
        payload(2, bytes(|out| open(Purpose::Produce, all_dtypes()).write(out))),
        payload(2, bytes(|out| open(Purpose::Probe, all_dtypes()).write(out))),
        payload(3, bytes(|out| welcome(3, None).write(out))),
        payload(3, bytes(|out| welcome(3, Some(all_dtypes())).write(out))),
    ];
    let codes = RefusalCode::all().map(|code| payload(4, bytes(|out| refused(code).write(out))));
    handshake.extend(codes);
    save("handshake", &handshake)?;
    let two = |one: &Spec, other: &Spec| {
        bytes(|out| [one, other].into_iter().for_each(|spec| spec.encode(out)))
    };
    save(
        "spec",
        &[two(&all_dtypes(), &spec(3)), two(&spec(3), &spec(4)), two(&spec(1), &spec(1))],
    )?;
    save("filter", &filters())?;
    save("chunk", &chunks())?;
    save("ledger_state", &states())?;
    save("ledger_changes", &ledger_changes())?;
    save("server", &[clients(0, 12), clients(1, 4088), clients(2, 12)].concat())?;
    save("client", &servers())?;
    save("tables", &tables())?;
    save("table_frames", &table_frames())?;
    // The steps of a producer, and what is done to files, are no frames: any bytes stand for some.
    let noise = |seed: u64| -> Vec<u8> {
        let byte = |at: u64| ((at + seed).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8;
        (0..seed % 300).map(byte).collect()
    };
    for target in ["producer", "checkpoint", "journal", "replay"] {
        save(target, &(0..24).map(|number| noise(number * 97)).collect::<Vec<_>>())?;
    }
    Ok(())
}
