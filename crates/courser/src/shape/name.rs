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
    out.chars().take(MAX).collect()
}
