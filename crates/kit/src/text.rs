//! Lines that fit a terminal.

/// Longest line of any output, in characters.
pub const WIDTH: usize = 80;

/// `text` in lines of at most `width` characters, broken at blanks, but not between a number and its
/// unit unless both are longer than a line.
pub fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    let mut add = |piece: &str| match lines.last_mut() {
        Some(line) if line.chars().count() + 1 + piece.chars().count() <= width => {
            line.push(' ');
            line.push_str(piece);
        }
        _ => lines.push(piece.to_owned()),
    };
    for piece in pieces(text) {
        if piece.chars().count() <= width {
            add(&piece);
        } else {
            piece.split(' ').for_each(&mut add);
        }
    }
    lines
}

/// The words of a text, and numbers together with the words after them.
pub fn pieces(text: &str) -> Vec<String> {
    let mut pieces: Vec<String> = Vec::new();
    let is_digit = |c: char| c.is_ascii_digit();
    for word in text.split_whitespace() {
        match pieces.last_mut() {
            // A word that begins with a digit is no unit, so lists of numbers can be broken.
            Some(number)
                if number.ends_with(is_digit)
                    && !number.contains(' ')
                    && !word.starts_with(is_digit) =>
            {
                number.push(' ');
                number.push_str(word);
            }
            _ => pieces.push(word.to_owned()),
        }
    }
    pieces
}

/// `label`, then `text` in lines of at most [`WIDTH`] characters, which align after the label.
pub fn labelled(label: &str, text: &str) -> String {
    let indent = label.chars().count();
    format!("{label}{}", wrap(text, WIDTH - indent).join(&format!("\n{:indent$}", "")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_broken_between_words_but_not_before_units() {
        assert_eq!(wrap("after 12.3 µs it ends", 10), ["after", "12.3 µs it", "ends"]);
        assert_eq!(wrap("1 2 3", 3), ["1 2", "3"]);
        assert_eq!(wrap("123456 seconds", 7), ["123456", "seconds"]);
    }

    #[test]
    fn lines_after_the_first_align_after_the_label() {
        let text = labelled("  label ", &"word ".repeat(20));
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines.len(), 2, "{text}");
        assert!(lines[0].starts_with("  label word ") && lines[0].len() <= WIDTH, "{text}");
        assert!(lines[1].starts_with("        word "), "{text}");
    }
}
