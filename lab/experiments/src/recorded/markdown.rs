//! The recorded results as a Markdown document: `docs/results/experiments.md`.

use std::fmt::Write;

use super::SEEDS;
use super::page::{Section, beside, cells, headings, paper_of, reasons};
use crate::declare::points::Size;

/// All experiments with all of their points.
pub(super) fn document(sections: &[Section]) -> String {
    let mut text = format!(
        "# The papers' experiments, repeated\n\n\
         Written by `courser-lab report --out docs/results/experiments.md` from \
         `lab/experiments/recorded`; a test compares them. Endpoints, sessions and handlers are Courser's \
         own; hosts, NICs and network are simulated. Medians over {} seeds, with their range; \
         where all seeds have the same value it is one run, and the range states nothing about other \
         arrivals. `courser-lab verify` runs all of it again.\n",
        SEEDS.len()
    );
    for section in sections {
        add(&mut text, section);
    }
    text
}

fn add(text: &mut String, section: &Section) {
    let Section { experiment, size, results } = section;
    let mut line = |line: &str| {
        text.push_str(line);
        text.push('\n');
    };
    line(&format!("\n## {}. {}\n", experiment.id, experiment.title));
    line(&format!("{}. {}\n", experiment.source, experiment.model));
    if *size == Size::Short {
        line("Short runs only: fewer points and less time.\n");
    }
    let beside: Vec<_> = beside(section).collect();
    for reason in reasons(&beside) {
        line(&format!("Deviation: {reason}\n"));
    }
    line(&row(headings(section).into_iter().map(str::to_owned)));
    line("| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |");
    for p in &results.points {
        line(&row(cells(experiment, p, paper_of(experiment, p)).into_iter()));
    }
}

fn row(cells: impl Iterator<Item = String>) -> String {
    let mut line = String::from("|");
    for cell in cells {
        // Cannot fail.
        let _ = write!(line, " {} |", cell.replace('|', "/"));
    }
    line
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::recorded::page::tests::recorded;

    #[test]
    fn the_document_has_the_recorded_results() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/results/experiments.md");
        let Ok(written) = std::fs::read_to_string(&path) else {
            return println!("skipped: the package has no documents");
        };
        let same = written == document(&recorded());
        assert!(same, "run `courser-lab report --out docs/results/experiments.md`");
    }
}
