use std::fs;

use tempfile::TempDir;

use super::*;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
/// What a first-generation group without a limit says, with pages of 4 KiB.
const UNLIMITED: &str = "9223372036854771712";

const BOTH_GENERATIONS: &str = "\
9:name=systemd:/
4:memory:/jobs/one
3:cpu,cpuacct:/elsewhere
0::/
";

fn mounts(v1: &str, v2: &str) -> String {
    format!(
        "22 21 0:19 / /proc rw,nosuid shared:5 - proc proc rw\n\
         35 31 0:32 / {v1} rw,relatime shared:7 master:1 - cgroup cgroup rw,memory\n\
         36 31 0:33 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
         41 31 0:38 / {v2} rw,relatime - cgroup2 cgroup2 rw,nsdelegate\n"
    )
}

fn figures(usage: u64, inactive_file: u64, limit: u64) -> Figures {
    Figures { usage, inactive_file, limit: Some(limit) }
}

/// A group's folder of the second generation.
fn v2(folder: &Path, limit: &str, usage: u64, inactive: u64) {
    fs::create_dir_all(folder).unwrap();
    fs::write(folder.join("memory.max"), format!("{limit}\n")).unwrap();
    fs::write(folder.join("memory.current"), format!("{usage}\n")).unwrap();
    let stat = format!("anon 1\nfile 2\ninactive_file {inactive}\nactive_file 3\n");
    fs::write(folder.join("memory.stat"), stat).unwrap();
}

/// A group's folder of the first generation.
fn v1(folder: &Path, limit: &str, usage: u64, inactive: u64, hierarchical: bool) {
    fs::create_dir_all(folder).unwrap();
    fs::write(folder.join("memory.limit_in_bytes"), format!("{limit}\n")).unwrap();
    fs::write(folder.join("memory.usage_in_bytes"), format!("{usage}\n")).unwrap();
    let stat = format!("cache 1\ninactive_file 4096\ntotal_inactive_file {inactive}\n");
    fs::write(folder.join("memory.stat"), stat).unwrap();
    let flag = if hierarchical { "1\n" } else { "0\n" };
    fs::write(folder.join("memory.use_hierarchy"), flag).unwrap();
}

/// The groups of a fixture whose only line of membership is `path`.
fn groups(root: &TempDir, version: Version, path: &str) -> Groups {
    let top = root.path().to_str().unwrap();
    let (cgroup, mountinfo) = match version {
        Version::V1 => (format!("4:memory:{path}\n0::/\n"), mounts(top, "/nowhere")),
        Version::V2 => (format!("0::{path}\n"), mounts("/nowhere", top)),
    };
    let place = Place::find(&cgroup, &mountinfo).unwrap();
    assert_eq!(place.version, version);
    Groups::open(&place)
}

#[test]
fn the_memory_controllers_own_hierarchy_wins_where_both_are_mounted() {
    let place = Place::find(BOTH_GENERATIONS, &mounts("/cg/memory", "/cg/unified")).unwrap();
    assert_eq!(
        place,
        Place { version: Version::V1, top: "/cg/memory".into(), own: "/cg/memory/jobs/one".into() }
    );
}

#[test]
fn without_it_the_unified_hierarchy_counts() {
    let place = Place::find("0::/user.slice/a.scope\n", &mounts("/v1", "/cg")).unwrap();
    assert_eq!(
        place,
        Place { version: Version::V2, top: "/cg".into(), own: "/cg/user.slice/a.scope".into() }
    );
}

#[test]
fn a_container_that_sees_only_its_own_group_finds_it_at_the_top() {
    let mountinfo = "35 31 0:32 /docker/abc /cg rw - cgroup cgroup rw,memory\n";
    let place = Place::find("4:memory:/docker/abc\n", mountinfo).unwrap();
    assert_eq!(place.own, Path::new("/cg"));
    let place = Place::find("4:memory:/docker/abc/inner\n", mountinfo).unwrap();
    assert_eq!(place.own, Path::new("/cg/inner"));
    // A name that only begins alike is another group.
    let place = Place::find("4:memory:/docker/abcdef\n", mountinfo).unwrap();
    assert_eq!(place.own, Path::new("/cg"));
    // So is one outside of what the namespace shows.
    let place = Place::find("4:memory:/../other\n", mountinfo).unwrap();
    assert_eq!(place.own, Path::new("/cg"));
}

#[test]
fn of_two_mounts_the_one_that_shows_more_of_the_way_up_counts() {
    let mountinfo = "1 1 0:1 /a/b /part rw - cgroup2 c rw\n2 1 0:1 / /whole rw - cgroup2 c rw\n";
    let place = Place::find("0::/a/b/c\n", mountinfo).unwrap();
    assert_eq!((place.top, place.own), ("/whole".into(), "/whole/a/b/c".into()));
}

#[test]
fn a_mount_point_with_a_blank_in_it_is_read() {
    let mountinfo = "1 1 0:1 / /my\\040cgroups rw - cgroup2 c rw\n";
    let place = Place::find("0::/a\n", mountinfo).unwrap();
    assert_eq!(place.own, Path::new("/my cgroups/a"));
    assert_eq!(unescaped("a\\04"), "a\\04");
    assert_eq!(unescaped("a\\\\040b"), "a\\ b");
}

#[test]
fn texts_that_are_none_name_no_place() {
    for cgroup in ["", "nonsense", "4:memory", "::", "1:cpu:/a"] {
        assert_eq!(Place::find(cgroup, &mounts("/v1", "/v2")), None, "{cgroup}");
    }
    for mountinfo in ["", " - ", "1 2 3 - cgroup2", "1 1 0:1 / /p rw - proc proc rw\n"] {
        assert_eq!(Place::find("0::/a\n", mountinfo), None, "{mountinfo}");
    }
}

#[test]
fn k5_no_limit_below_the_machines_memory_is_no_limit() {
    assert_eq!(limit("max\n").unwrap(), None);
    assert_eq!(limit(UNLIMITED).unwrap(), None);
    // Pages of 64 KiB.
    assert_eq!(limit("9223372036854710272").unwrap(), None);
    assert!(limit("").is_err() && limit("-1").is_err());
    let none = Figures { usage: GIB, inactive_file: 0, limit: None };
    assert_eq!(tightest([none], 16 * GIB), None);
    assert_eq!(tightest([figures(GIB, 0, 16 * GIB)], 16 * GIB), None);
    assert_eq!(tightest([figures(GIB, 0, 17 * GIB)], 16 * GIB), None);
}

#[test]
fn k5_a_limit_of_512_mib_on_a_machine_of_16_gib_is_measured_by_the_working_set() {
    let expected = MemoryReading::new(300 * MIB, 512 * MIB);
    assert_eq!(tightest([figures(500 * MIB, 200 * MIB, 512 * MIB)], 16 * GIB), Some(expected));
    // More inactive pages than usage, as two files read apart may say.
    let none = MemoryReading::new(0, 512 * MIB);
    assert_eq!(tightest([figures(1, 2, 512 * MIB)], 16 * GIB), Some(none));
}

#[test]
fn of_several_limits_the_one_closest_to_its_end_counts() {
    let (own, above) = (figures(100 * MIB, 0, 512 * MIB), figures(990 * MIB, 0, GIB));
    assert_eq!(tightest([own, above], 16 * GIB), Some(MemoryReading::new(990 * MIB, GIB)));
    let calm = figures(100 * MIB, 0, GIB);
    assert_eq!(tightest([own, calm], 16 * GIB), Some(MemoryReading::new(100 * MIB, 512 * MIB)));
    let idle = [figures(0, 0, GIB), figures(0, 0, 512 * MIB)];
    assert_eq!(tightest(idle, 16 * GIB), Some(MemoryReading::new(0, 512 * MIB)));
}

#[test]
fn a_second_generation_group_is_read_anew_each_time() {
    let root = tempfile::tempdir().unwrap();
    let own = root.path().join("jobs/one");
    v2(&own, &(512 * MIB).to_string(), 500 * MIB, 200 * MIB);
    let mut groups = groups(&root, Version::V2, "/jobs/one");
    let expected = MemoryReading::new(300 * MIB, 512 * MIB);
    assert_eq!(groups.read(16 * GIB).unwrap(), Some(expected));
    v2(&own, "max", 500 * MIB, 200 * MIB);
    assert_eq!(groups.read(16 * GIB).unwrap(), None);
    v2(&own, &GIB.to_string(), 600 * MIB, 0);
    assert_eq!(groups.read(16 * GIB).unwrap(), Some(MemoryReading::new(600 * MIB, GIB)));
}

#[test]
fn a_limit_may_be_on_a_group_above_and_groups_without_the_controller_are_passed_over() {
    let root = tempfile::tempdir().unwrap();
    v2(&root.path().join("pod"), &GIB.to_string(), 700 * MIB, 100 * MIB);
    v2(&root.path().join("pod/app"), "max", 300 * MIB, 0);
    fs::create_dir_all(root.path().join("pod/app/leaf")).unwrap();
    let mut groups = groups(&root, Version::V2, "/pod/app/leaf");
    assert_eq!(groups.groups.len(), 2);
    assert_eq!(groups.read(16 * GIB).unwrap(), Some(MemoryReading::new(600 * MIB, GIB)));
}

#[test]
fn a_path_that_cannot_be_seen_falls_back_to_what_can() {
    let root = tempfile::tempdir().unwrap();
    v2(root.path(), &GIB.to_string(), 700 * MIB, 0);
    let mut groups = groups(&root, Version::V2, "/hosts/view/of/it");
    assert_eq!(groups.read(16 * GIB).unwrap(), Some(MemoryReading::new(700 * MIB, GIB)));
}

#[test]
fn a_first_generation_group_subtracts_the_inactive_pages_of_all_below_it() {
    let root = tempfile::tempdir().unwrap();
    v1(root.path(), UNLIMITED, 4 * GIB, 0, true);
    v1(&root.path().join("jobs"), &(512 * MIB).to_string(), 500 * MIB, 200 * MIB, true);
    let mut groups = groups(&root, Version::V1, "/jobs");
    assert_eq!(groups.groups.len(), 2);
    let expected = MemoryReading::new(300 * MIB, 512 * MIB);
    assert_eq!(groups.read(16 * GIB).unwrap(), Some(expected));
}

#[test]
fn a_first_generation_group_that_does_not_count_its_children_ends_the_way_up() {
    let root = tempfile::tempdir().unwrap();
    v1(&root.path().join("jobs"), &GIB.to_string(), 900 * MIB, 0, false);
    v1(&root.path().join("jobs/one"), UNLIMITED, 100 * MIB, 0, false);
    let mut groups = groups(&root, Version::V1, "/jobs/one");
    assert_eq!(groups.read(16 * GIB).unwrap(), None);
}

#[test]
fn a_file_that_says_something_else_is_an_error_and_not_a_number() {
    let root = tempfile::tempdir().unwrap();
    v2(&root.path().join("a"), "512 MiB", 1, 0);
    assert!(groups(&root, Version::V2, "/a").read(16 * GIB).is_err());
    v2(&root.path().join("a"), "512", 1, 0);
    fs::write(root.path().join("a/memory.current"), "").unwrap();
    assert!(groups(&root, Version::V2, "/a").read(16 * GIB).is_err());
}
