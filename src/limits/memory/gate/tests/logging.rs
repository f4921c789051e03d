use super::*;
use crate::limits::logged::logged;

#[test]
fn the_latch_is_logged_at_warn_and_its_clearing_at_info_with_the_same_summary() {
    let (memory, gate) = scripted(96.0);
    let now = Instant::now();
    let lines = logged(|| {
        for percent in [96.0, 97.0, 90.0, 85.0, 85.0] {
            memory.set_percent(percent);
            gate.look(now);
        }
    });
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert!(lines[0].starts_with("WARN memory latched: CRITICAL: 96.0 % used"), "{}", lines[0]);
    assert_eq!(lines[1], format!("INFO memory cleared: {}", gate.summary(now)));
}

#[test]
fn a_failing_source_is_logged_once() {
    let (memory, gate) = scripted(50.0);
    let now = Instant::now();
    let lines = logged(|| {
        for _ in 0..3 {
            memory.fail();
            gate.look(now);
            memory.panic();
            gate.look(now);
            memory.set_percent(50.0);
            gate.look(now);
        }
    });
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].starts_with("WARN") && lines[0].contains("scripted failure"), "{}", lines[0]);
}

/// A source that asks its own gate whatever may be asked, when told to relieve.
struct Nosy(std::sync::OnceLock<std::sync::Weak<MemoryGate>>);

impl MemorySource for Nosy {
    fn read(&self) -> io::Result<MemoryReading> {
        Ok(MemoryReading::new(96, 100))
    }

    fn relieve(&self) {
        let gate = self.0.get().and_then(std::sync::Weak::upgrade).unwrap();
        assert!(gate.failure_logged.try_lock().is_some());
        assert!(gate.pressure.try_lock().is_some());
        gate.look(Instant::now());
        assert_eq!(gate.status().zone, MemoryZone::Critical);
        panic!("relief failed");
    }
}

#[test]
fn no_lock_is_held_when_relief_is_asked_and_its_panic_is_contained() {
    let source = Arc::new(Nosy(std::sync::OnceLock::new()));
    let gate = MemoryGate::with_source(Arc::clone(&source)).unwrap();
    source.0.set(Arc::downgrade(&gate)).unwrap();
    let now = Instant::now();
    let lines = logged(|| gate.look(now));
    assert!(!gate.willing(FREE, now));
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert!(lines[1].contains("panicked"), "{}", lines[1]);
}

#[test]
fn a_listener_of_the_log_that_panics_opens_no_gate() {
    let listener = || tracing_subscriber::fmt().with_writer(|| -> io::Sink { panic!("no disk") });
    tracing::subscriber::with_default(listener().finish(), || {
        let (memory, gate) = scripted(96.0);
        let admission = crate::Admission::builder().memory_gate(gate.clone()).build().unwrap();
        let place = crate::CountingGate::new("place", 1).unwrap();
        let comes = || admission.try_admit(crate::Demand::new().permit(&place));
        for _ in 0..3 {
            assert!(comes().is_err(), "memory is full");
        }
        memory.fail();
        gate.look(Instant::now());
        assert!(comes().is_err(), "the last reading stands");
        memory.set_percent(50.0);
        gate.look(Instant::now());
        drop(comes().unwrap());
        // Nor do the others take its panic for their own, or hand it to who reports.
        let bucket = crate::TokenBucket::new("bucket", crate::Limits::per_minute(1, 1)).unwrap();
        let window = crate::ElasticWindow::builder("window").failures_to_open(1).max_throttle(0.0);
        let window = window.build().unwrap();
        let failure = crate::UpstreamFailure::status(503, "it", "down");
        bucket.record_failure(&failure.clone().with_retry_after(Duration::from_secs(86_400)));
        window.record_failure(&failure);
        assert_eq!(window.status().circuit, crate::CircuitState::Blocked);
    });
}
