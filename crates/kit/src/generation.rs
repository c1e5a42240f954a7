//! The generation of a processor: virtual machines of a cloud have the same model name on different
//! ones, and figures differ between generations by factors.

/// AMD's microarchitectures by family and range of models, as in Linux's `amd.c`.
const AMD: &[(u32, u32, u32, &str)] = &[
    (0x17, 0x00, 0x2f, "Zen"),
    (0x17, 0x30, 0x4f, "Zen 2"),
    (0x17, 0x50, 0x5f, "Zen"),
    (0x17, 0x60, 0xaf, "Zen 2"),
    (0x19, 0x00, 0x0f, "Zen 3"),
    (0x19, 0x10, 0x1f, "Zen 4"),
    (0x19, 0x20, 0x5f, "Zen 3"),
    (0x19, 0x60, 0xaf, "Zen 4"),
    (0x1a, 0x00, 0x2f, "Zen 5"),
    (0x1a, 0x40, 0x4f, "Zen 5"),
    (0x1a, 0x50, 0x5f, "Zen 6"),
    (0x1a, 0x60, 0x7f, "Zen 5"),
    (0x1a, 0x80, 0xcf, "Zen 6"),
];

/// Intel's server microarchitectures of family 6 by range of models, as in Linux's `intel-family.h`.
const INTEL: &[(u32, u32, &str)] = &[
    (0x3f, 0x3f, "Haswell"),
    (0x4f, 0x4f, "Broadwell"),
    (0x55, 0x55, "Skylake or Cascade Lake"),
    (0x56, 0x56, "Broadwell"),
    (0x6a, 0x6a, "Ice Lake"),
    (0x6c, 0x6c, "Ice Lake"),
    (0x8f, 0x8f, "Sapphire Rapids"),
    (0xad, 0xae, "Granite Rapids"),
    (0xaf, 0xaf, "Sierra Forest"),
    (0xcf, 0xcf, "Emerald Rapids"),
];

/// Arm's server cores by part number.
const ARM: &[(u32, &str)] = &[
    (0xd0c, "Neoverse N1"),
    (0xd40, "Neoverse V1"),
    (0xd49, "Neoverse N2"),
    (0xd4f, "Neoverse V2"),
    (0xd84, "Neoverse V3"),
    (0xd8e, "Neoverse N3"),
];

/// The generation by the fields of `/proc/cpuinfo`; the numbers of the processor if it has no name
/// here, `None` without numbers.
pub(crate) fn of<'a>(field: impl Fn(&str) -> Option<&'a str>) -> Option<String> {
    let number = |name: &str| match field(name)?.strip_prefix("0x") {
        Some(hex) => u32::from_str_radix(hex, 16).ok(),
        None => field(name)?.parse().ok(),
    };
    if let Some(part) = number("CPU part") {
        let known = ARM.iter().find(|(known, _)| *known == part);
        return Some(known.map_or_else(|| format!("part {part:#x}"), |(_, name)| (*name).into()));
    }
    let (family, model) = (number("cpu family")?, number("model")?);
    let amd = || {
        let found = |&&(f, low, high, _): &&(u32, u32, u32, _)| {
            f == family && (low..=high).contains(&model)
        };
        AMD.iter().find(found).map(|&(.., name)| name)
    };
    let intel = || {
        let found = |&&(low, high, _): &&(u32, u32, _)| (low..=high).contains(&model);
        INTEL.iter().find(found).map(|&(.., name)| name)
    };
    let known = match field("vendor_id") {
        Some("AuthenticAMD") => amd(),
        Some("GenuineIntel") if family == 6 => intel(),
        _ => None,
    };
    Some(known.map_or_else(|| format!("family {family}, model {model}"), str::to_owned))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn x86(vendor: &str, family: &str, model: &str) -> Option<String> {
        of(|name| match name {
            "vendor_id" => Some(vendor),
            "cpu family" => Some(family),
            "model" => Some(model),
            _ => None,
        })
    }

    #[test]
    fn processors_of_one_model_name_differ_in_their_generation() {
        let amd = |family: &str, model: &str| x86("AuthenticAMD", family, model);
        assert_eq!(amd("25", "1").as_deref(), Some("Zen 3"));
        assert_eq!(amd("25", "17").as_deref(), Some("Zen 4"));
        assert_eq!(amd("26", "2").as_deref(), Some("Zen 5"));
        assert_eq!(x86("GenuineIntel", "6", "143").as_deref(), Some("Sapphire Rapids"));
        let arm = |part| of(|name| (name == "CPU part").then_some(part));
        assert_eq!(arm("0xd40").as_deref(), Some("Neoverse V1"));
    }

    #[test]
    fn an_unknown_processor_has_its_numbers() {
        assert_eq!(x86("AuthenticAMD", "40", "1").as_deref(), Some("family 40, model 1"));
        assert_eq!(x86("GenuineIntel", "15", "143").as_deref(), Some("family 15, model 143"));
        assert_eq!(
            of(|name| (name == "CPU part").then_some("0xfff")).as_deref(),
            Some("part 0xfff")
        );
        assert_eq!(of(|_| None), None);
        assert_eq!(x86("AuthenticAMD", "many", "1"), None);
    }
}
