//! What requirements become: one demand, in order, with the sums.

use admit::{
    Account, Amount, DbProvider, ElasticWindow, JobInfo, ModelSpec, ProviderError, Requirements,
    Resources, RunError, Usage,
};
use std::sync::Arc;
use std::time::Duration;

use crate::support::{Recording, World};

/// The demand a job is granted, as names and amounts.
async fn granted(world: &World, requirements: Requirements) -> Vec<(String, Amount)> {
    let job = async |resources: Resources| {
        let entries = resources.demand().entries().iter();
        Ok::<_, String>(
            entries
                .map(|entry| (entry.account().link().name().to_string(), entry.amount()))
                .collect(),
        )
    };
    let granted = world.runner.run(requirements, job).await.unwrap();
    world.settled().await;
    granted
}

fn names(granted: &[(String, Amount)]) -> Vec<&str> {
    granted.iter().map(|(name, _)| name.as_str()).collect()
}

#[tokio::test(start_paused = true)]
async fn the_demand_is_models_then_http_then_accounts_then_databases() {
    let world = World::new();
    let local = ModelSpec::concurrent("llama-local", 3);
    let requirements = Requirements::new()
        .database(&world.databases[1])
        .permit(&world.own)
        .database(&world.databases[0])
        .call(&world.model, Usage::new(600, 400))
        .call(&local, Usage::new(1, 1));
    let granted = granted(&world, requirements).await;
    assert_eq!(names(&granted), ["gpt-x", "llama-local", "http", "own", "db:b", "db:a"]);
    assert_eq!(granted[0].1, Amount::tokens(1_000));
    assert!(granted[1..].iter().all(|(_, amount)| *amount == Amount::permits(1)));
}

#[tokio::test(start_paused = true)]
async fn what_is_named_twice_is_one_entry_with_the_sum_and_one_handle() {
    let world = World::new();
    let local = ModelSpec::concurrent("llama-local", 3);
    let requirements = Requirements::new()
        .call(&world.model, Usage::new(100, 200))
        .call(&local, Usage::default())
        .call(&world.model, Usage::new(10, 20).with_cache(3, 4))
        .call(&local, Usage::default())
        .add(&world.own, Amount::permits(2))
        .database(&world.databases[0])
        .permit(&world.own)
        .database(&world.databases[0]);
    let granted = granted(&world, requirements).await;
    assert_eq!(names(&granted), ["gpt-x", "llama-local", "http", "own", "db:a"]);
    assert_eq!(granted[0].1, Amount { requests: 2, units: 337 });
    assert_eq!(granted[1].1, Amount::permits(2));
    assert_eq!(granted[2].1, Amount::permits(1));
    assert_eq!(granted[3].1, Amount::permits(3));
    assert_eq!(granted[4].1, Amount::permits(2));
    assert_eq!(world.log.text(), "a.acquire a.close");
}

#[tokio::test(start_paused = true)]
async fn one_http_place_comes_with_whatever_needs_it() {
    let world = World::new();
    let builder = ElasticWindow::builder("geocoder").per(Duration::from_secs(1)).max(5);
    let geocoder = builder.build().unwrap();
    assert!(geocoder.needs_http());
    for (requirements, expected) in [
        (Requirements::new().http(), vec!["http"]),
        (Requirements::new().permit(&geocoder), vec!["http", "geocoder"]),
        (Requirements::new().http().permit(&geocoder).http(), vec!["http", "geocoder"]),
        (Requirements::new().permit(&world.own), vec!["own"]),
        (Requirements::new().database(&world.databases[2]), vec!["db:c"]),
    ] {
        let granted = granted(&world, requirements).await;
        assert_eq!(names(&granted), expected);
        let http = granted.iter().filter(|(name, _)| name == "http");
        assert!(http.clone().all(|(_, amount)| *amount == Amount::permits(1)));
    }
}

#[tokio::test(start_paused = true)]
async fn no_requirements_are_an_orchestrators_and_never_wait() {
    let world = World::new();
    let everything =
        world.admission.admit(admit::Demand::new().permits(&world.own, 4).permits(&world.http, 8));
    let held = everything.await.unwrap();
    let job = async |resources: Resources| Ok::<_, String>(resources.demand().entries().len());
    assert_eq!(world.runner.run(Requirements::new(), job).await.unwrap(), 0);
    drop(held);
    world.settled().await;
}

#[tokio::test(start_paused = true)]
async fn the_job_knows_who_it_is_and_what_it_waited_for() {
    let world = World::new();
    let held = world.admission.admit(admit::Demand::new().permits(&world.own, 4)).await.unwrap();
    let info = JobInfo::new("17", "summarise").in_workflow("nightly");
    let run = world.runner.job(world.everything().for_job(info.clone())).run_recorded(
        async |resources: Resources| {
            assert_eq!(resources.job().to_string(), "summarise (17)");
            assert_eq!(resources.attempt(), 1);
            assert_eq!(resources.admission_wait(), Duration::from_secs(3));
            assert_eq!(resources.wait_times().len(), 1);
            Ok::<_, String>(())
        },
    );
    let (finished, ()) = tokio::join!(run, async {
        tokio::time::sleep(Duration::from_secs(3)).await;
        drop(held);
    });
    finished.result.unwrap();
    assert_eq!(*finished.record.job, info);
    assert_eq!(finished.record.admission_wait, Duration::from_secs(3));
    assert_eq!(&*finished.record.wait_times[0].account, "own");
    world.settled().await;
}

#[tokio::test(start_paused = true)]
async fn a_database_that_was_not_required_is_an_error_that_names_those_that_were() {
    let world = World::new();
    let other = Recording::new("other", 1, &world.log);
    let job = async |resources: Resources| {
        let error = resources.get(&other).unwrap_err();
        assert!(matches!(error, ProviderError::NotHeld { .. }));
        assert_eq!(
            error.to_string(),
            "database `other` is not among what this job holds (`a`, `b`, `c`); require it first"
        );
        // Of the same name, and yet another database.
        let namesake = Recording::new("a", 1, &world.log);
        assert!(resources.get(&namesake).is_err());
        Ok::<_, String>(())
    };
    world.runner.run(world.everything(), job).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_planned_is_refused_before_anything_is_taken() {
    let world = World::new();
    let nothing = ModelSpec::new("nothing", 0);
    let requirements = world.everything().call(&nothing, Usage::new(1, 1));
    let ran = world.runner.run(requirements, async |_| Ok::<_, String>(())).await;
    let error = ran.unwrap_err();
    assert!(matches!(error, RunError::Requirements(_)), "{error}");
    assert!(error.to_string().contains("`nothing`"), "{error}");
    // More than the bucket can ever hold: refused by the admission, naming both numbers.
    let too_much = Requirements::new().call(&world.model, Usage::new(60_000, 1));
    let ran = world.runner.run(too_much, async |_| Ok::<_, String>(())).await;
    let text = ran.unwrap_err().to_string();
    assert!(text.contains("60001") && text.contains("60000"), "{text}");
    world.settled().await;
    assert_eq!(world.log.text(), "");
}

#[tokio::test(start_paused = true)]
async fn a_mapped_provider_hands_out_what_is_built_on_the_session() {
    let world = World::new();
    let mapped = world.databases[0].mapped(|name: Arc<str>| format!("repository of {name}"));
    let job = async |resources: Resources| {
        assert_eq!(resources.get(&mapped).unwrap(), "repository of a");
        assert!(resources.get(&world.databases[0]).is_err(), "it is another handle");
        Ok::<_, String>(())
    };
    world.runner.run(Requirements::new().database(&mapped), job).await.unwrap();
    assert_eq!(world.log.text(), "a.acquire a.close");
}

#[tokio::test(start_paused = true)]
async fn code_that_was_handed_nothing_finds_the_jobs_own_session() {
    let world = World::new();
    let ambient = || admit::ambient(&world.databases[1]);
    assert!(ambient().unwrap_err().to_string().contains("is not held here"));
    let job = async |_| {
        assert_eq!(&*ambient().unwrap(), "b");
        tokio::task::yield_now().await;
        assert_eq!(&*ambient().unwrap(), "b");
        let database = Arc::clone(&world.databases[1]);
        let spawned = tokio::spawn(async move { admit::ambient(&database).is_err() });
        assert!(spawned.await.unwrap(), "a task inherits nothing");
        Ok::<_, String>(())
    };
    world.runner.run(world.everything(), job).await.unwrap();
    assert!(ambient().is_err(), "nothing stays bound");
}

#[tokio::test(start_paused = true)]
async fn a_job_that_nobody_named_is_nobody_in_its_demand() {
    let world = World::new();
    let named = async |resources: Resources| Ok::<_, String>(resources.demand().job().is_some());
    assert!(!world.runner.run(world.everything(), named).await.unwrap());
    let of_workflow = world.everything().for_job(JobInfo::default().in_workflow("nightly"));
    assert!(world.runner.run(of_workflow, named).await.unwrap());
}
