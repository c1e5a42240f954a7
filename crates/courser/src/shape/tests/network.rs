//! Shapes as bytes.

use super::*;
use crate::error::service::DecodeError;
use crate::shape::method::{MethodKind, MethodShape};
use crate::shape::parse::MAX_BYTES;

#[test]
fn a_shape_is_read_back_from_its_bytes() {
    let shapes = [
        Shape::of::<Row>(),
        Shape::of::<Kind>(),
        Shape::of::<Tree>(),
        Shape::of::<Option<Many>>(),
        Shape::of::<Large>(),
        Shape::of::<Several>(),
        Shape::of::<Alias>(),
        Shape::of::<(u8, [u16; 32], Pair, ())>(),
        Shape::opaque("a\nname"),
        Shape::never(),
        Shape::tuple([Shape::of::<Row>(), Shape::of::<Tree>(), Shape::opaque("x")]),
    ];
    for shape in shapes {
        assert_eq!(Shape::from_bytes(&shape.to_bytes()), Ok(shape));
    }
}

#[test]
fn bytes_and_fingerprints_never_change() {
    let row = Shape::of::<Row>();
    assert_eq!(row.to_bytes(), b"\x01\x45\x00\x01\x03Row\x00\x02\x01\x01a\x09\x01\x01b\x41\x0f");
    assert_eq!(row.fingerprint(), 7943471803279389550);
    assert_eq!(Shape::of::<Kind>().fingerprint(), 3364213005512337905);
    mod other {
        #[derive(serde::Deserialize)]
        #[allow(dead_code)]
        pub(super) struct Line {
            a: u32,
            b: Option<String>,
        }
    }
    assert_eq!(Shape::of::<other::Line>().fingerprint(), row.fingerprint());
    assert_ne!(Shape::of::<Tree>().fingerprint(), row.fingerprint());
}

#[test]
fn mutated_bytes_are_refused_or_a_shape_with_these_bytes() {
    let shapes = [Shape::of::<Option<Many>>(), Shape::of::<Several>(), Shape::of::<Tree>()];
    let originals: Vec<_> = shapes.iter().map(Shape::to_bytes).collect();
    let (mut x, mut read) = (7_u64, 0);
    let mut below = |limit: usize| {
        x = x.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        ((x >> 33) as usize) % limit.max(1)
    };
    for i in 0..50_000 {
        let mut bytes = originals[i % originals.len()].clone();
        for _ in 0..=below(3) {
            let at = below(bytes.len());
            match below(5) {
                0 => bytes[at] ^= 1 << below(8),
                1 => bytes[at] = [0, 1, 0x40, 0x44, 0x45, 0x80, 0xff][below(7)],
                2 => bytes.insert(at, below(256) as u8),
                3 if bytes.len() > 4 => drop(bytes.remove(at)),
                _ => bytes.truncate(at + 1),
            }
        }
        let Ok(shape) = Shape::from_bytes(&bytes) else { continue };
        read += 1;
        assert_eq!(shape.to_bytes(), bytes);
        assert!(shape.to_string().chars().count() <= 401);
        let original = &shapes[i % shapes.len()];
        assert_eq!(shape.same(&shape), Ok(()));
        for difference in [shape.same(original), original.reads(&shape), shape.reads(original)] {
            let text = difference.err().map_or(0, |e| e.to_string().chars().count());
            assert!(text < 1000);
        }
    }
    assert!(read > 1000, "{read}");
}

#[test]
fn bytes_beyond_the_limits_are_refused() {
    let nested = |depth| [vec![1], vec![0x41; depth], vec![0, 0]].concat();
    assert!(Shape::from_bytes(&nested(127)).is_ok());
    assert!(Shape::from_bytes(&nested(128)).is_err());
    assert!(Shape::from_bytes(&nested(60_000)).is_err());
    assert!(Shape::from_bytes(&vec![1; MAX_BYTES + 1]).is_err());
    // A reference to no type, a list of four billion, a number with a needless byte, a type that is not
    // used, equal runs, and a byte behind the end.
    for bytes in [
        &b"\x01\x45\x00\x00"[..],
        b"\x01\x44\xff\xff\xff\xff\x0f",
        b"\x01\x00\x80\x00",
        b"\x01\x00\x01\x01A\x00\x00",
        b"\x01\x44\x02\x01\x07\x01\x07\x00",
        b"\x01\x00\x00\x00",
        b"\x02\x00\x00",
        b"",
    ] {
        assert!(Shape::from_bytes(bytes).is_err(), "{bytes:?}");
    }
    let mut deep = Shape::of::<u8>();
    for _ in 0..200 {
        deep = Shape::tuple([deep, Shape::of::<u16>()]);
    }
    assert!(Shape::from_bytes(&deep.to_bytes()).is_ok());
    assert!(deep.to_string().contains("tuple#"), "{deep}");
    let wide = Shape::tuple((0..9000).map(|i| Shape::opaque(&format!("{i:>20}"))));
    assert!(wide.to_bytes().len() < 100 && wide.same(&wide).is_ok());
}

#[test]
fn texts_are_cut_and_contain_no_control_characters() {
    let text = Shape::tuple([Shape::opaque("a\n\u{1b}[31m"), Shape::of::<Large>()]).to_string();
    assert!(text.starts_with("(a\\n\\u{1b}[31m, enum Large { v(Large), "), "{text}");
    assert_eq!(text.chars().count(), 401);
    assert!(text.ends_with('…'));
}

fn of_two(names: &[&str]) -> MethodShape {
    let arguments = Shape::tuple([Shape::of::<u32>(), Shape::of::<u32>()]);
    let parts = [arguments, Shape::never(), Shape::of::<u8>(), Shape::never()];
    MethodShape::with_parameters(MethodKind::Unary, names, parts)
}

#[test]
fn the_names_of_parameters_are_read_back_and_limited() {
    let method = of_two(&["from", "to"]);
    assert_eq!(MethodShape::from_bytes(&method.to_bytes()), Ok(method.clone()));
    assert_eq!(method.to_string(), "fn(from: u32, to: u32) -> u8");
    assert_eq!(of_two(&[]).to_string(), "fn(u32, u32) -> u8");
    assert_ne!(method.fingerprint(), of_two(&["to", "from"]).fingerprint());
    assert_ne!(of_two(&["a", "bc"]).fingerprint(), of_two(&["ab", "c"]).fingerprint());
    let long = "x".repeat(5_000);
    let limited = of_two(&vec![&*long; 300]);
    assert_eq!(MethodShape::from_bytes(&limited.to_bytes()), Ok(limited));
    // 256 names, a name of 801 bytes, one that is no text, one behind the end.
    let names = |count: u16, len: u16, byte: u8| {
        let name = [&len.to_le_bytes()[..], &vec![byte; usize::from(len)]].concat();
        let names = name.repeat(usize::from(count));
        [&[0][..], &count.to_le_bytes(), &names, &of_two(&[]).to_bytes()[3..]].concat()
    };
    assert!(MethodShape::from_bytes(&names(255, 1, b'x')).is_ok());
    for bytes in [names(256, 1, b'x'), names(1, 801, b'x'), names(1, 1, 0xFF)] {
        assert!(matches!(MethodShape::from_bytes(&bytes), Err(DecodeError::Form(_))));
    }
    for end in 0..method.to_bytes().len() {
        assert!(MethodShape::from_bytes(&method.to_bytes()[..end]).is_err());
    }
}
