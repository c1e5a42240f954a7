//! Names of types without the paths of their modules.

/// Characters of a name.
pub(super) const MAX: usize = 200;

/// Leaves out the paths of a type's name: `Vec<Row>` of `alloc::vec::Vec<store::Row>`.
pub(super) fn short(name: &str) -> String {
    let mut out = String::new();
    // Where the segment begins that may be left out.
    let mut segment = 0;
    let mut chars = name.chars().peekable();
    while let Some(c) = chars.next() {
        if c == ':' && chars.next_if_eq(&':').is_some() {
            out.truncate(segment);
        } else {
            out.push(c);
            if !c.is_alphanumeric() && c != '_' {
                segment = out.len();
            }
        }
    }
    limited(&out)
}

/// The name, or if it is longer than [`MAX`] its beginning and a hash of it.
pub(super) fn limited(name: &str) -> String {
    if name.chars().nth(MAX).is_none() {
        return name.to_owned();
    }
    let hash = super::fnv(super::FNV_BASIS, name.as_bytes());
    format!("{}#{hash:016x}", name.chars().take(MAX - 17).collect::<String>())
}
