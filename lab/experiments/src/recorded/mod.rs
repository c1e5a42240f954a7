//! The experiments of the papers. Each is declared as its simulation, the paper's points with the reason
//! of each deviation, and quantities with a tolerance; recorded points are in files.
//!
//! `courser-lab record` runs experiments and writes the recorded results, `verify` runs them again
//! and compares, `report` writes all of them as one page.

mod args;
mod figure;
mod markdown;
mod page;
mod pool;
mod record;
mod result;
mod store;
mod verify;

pub(crate) use args::{RecordArgs, ReportArgs, VerifyArgs};
pub(crate) use page::run as report;
pub(crate) use record::run as record;
pub(crate) use verify::run as verify;

use std::sync::LazyLock;

use courser_kit::Failure;

use crate::declare::group::Group;
use crate::declare::points::Experiment;
use crate::experiments;

/// Seeds of every experiment: results are medians over them, with their range.
const SEEDS: [u64; 5] = [1, 2, 3, 4, 5];

/// All experiments, in the order of their requirements: eRPC's, MELO's, then Courser's own.
pub(crate) fn all() -> &'static [Experiment] {
    static ALL: LazyLock<Vec<Experiment>> = LazyLock::new(|| {
        use experiments::{composed, incast_table as table};
        let mut all = vec![composed::INCAST, table::CONTROLS, table::RATES, table::BYPASSES];
        let declared = experiments::Run::ALL.iter().chain(experiments::Recovery::ALL);
        all.extend(declared.flat_map(|e| e.recorded()));
        all.sort_by_key(|e| e.id);
        all
    });
    &ALL
}

/// An experiment that there is.
#[cfg(test)]
fn of_id(id: &str) -> &'static Experiment {
    all().iter().find(|e| e.id == id).expect("there is one")
}

/// The items of docs/conformance.md that are experiments.
#[cfg(test)]
pub(crate) fn items() -> Vec<&'static str> {
    let is_item = |id: &&str| id.starts_with(['E', 'M', 'S']);
    let mut items: Vec<_> = all().iter().map(|e| e.id).filter(is_item).collect();
    items.sort_unstable();
    items
}

/// The experiments of these ids, or all.
fn chosen(only: &[String]) -> Result<Vec<&'static Experiment>, Failure> {
    let known = |id: &&String| all().iter().any(|e| e.id.eq_ignore_ascii_case(id));
    if let Some(unknown) = only.iter().find(|id| !known(id)) {
        let ids = all().iter().map(|e| e.id).collect::<Vec<_>>().join(", ");
        return Err(Failure::Usage(format!(
            "there is no experiment {unknown}: choose one of {ids}"
        )));
    }
    let is_chosen =
        |e: &&Experiment| only.is_empty() || only.iter().any(|id| e.id.eq_ignore_ascii_case(id));
    Ok(all().iter().filter(is_chosen).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::declare::points::Better;

    #[test]
    fn ids_are_unique_and_papers_refer_to_quantities() {
        for (n, e) in all().iter().enumerate() {
            assert!(all()[..n].iter().all(|other| other.id != e.id), "{} twice", e.id);
            for paper in e.paper {
                let quantity = e.quantity(paper.quantity);
                let has_direction = quantity.is_some_and(|q| q.better != Better::Neither);
                assert!(has_direction, "{}: {}", e.id, paper.quantity);
            }
        }
    }

    #[test]
    fn experiments_are_chosen_by_id_in_any_case() {
        let ids = |only: &[&str]| {
            let only: Vec<String> = only.iter().map(|&id| id.to_owned()).collect();
            chosen(&only).map(|all| all.iter().map(|e| e.id).collect::<Vec<_>>())
        };
        assert_eq!(ids(&["m24", "E35"]).expect("known"), ["E35", "M24"]);
        assert_eq!(ids(&[]).expect("all").len(), all().len());
        assert!(matches!(ids(&["E1000"]), Err(Failure::Usage(text)) if text.contains("E35, E44")));
    }
}
