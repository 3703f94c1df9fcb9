//! Two machines: network namespaces with a router between them, which can be told to lose
//! everything without a word.
//!
//! Needs root and `ip`. Without them the tests say `SKIPPED`, or fail when
//! `BONFIRE_REQUIRE_NETNS=1`.

use std::io::Write;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bonfire_comm::{Algorithm, CommError, ProcessGroup};

use crate::rank::{names_operation, work};
use crate::world::{AT_DEADLINE, Plan, Wiring, for_each};

/// Address of the first machine, where the store is.
const FIRST: &str = "10.99.1.2";

/// Machines 0 and 1, and the router.
struct Network {
    names: [String; 3],
}

impl Network {
    fn new() -> Result<Self, String> {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = |role| format!("bonfire-{}-{number}-{role}", std::process::id());
        let network = Self { names: ["a", "b", "router"].map(name) };
        for name in &network.names {
            run(&["netns", "add", name])?;
            run(&["-n", name, "link", "set", "lo", "up"])?;
        }
        let router = &network.names[2];
        for (machine, net) in [(&network.names[0], 1), (&network.names[1], 2)] {
            let (port, own) = (format!("eth{net}"), format!("10.99.{net}.2/24"));
            let (gate, gate_net) = (format!("10.99.{net}.1"), format!("10.99.{net}.1/24"));
            run(&[
                "-n", router, "link", "add", &port, "type", "veth", "peer", "name", "eth0",
                "netns", machine,
            ])?;
            run(&["-n", router, "addr", "add", &gate_net, "dev", &port])?;
            run(&["-n", router, "link", "set", &port, "up"])?;
            run(&["-n", machine, "addr", "add", &own, "dev", "eth0"])?;
            run(&["-n", machine, "link", "set", "eth0", "up"])?;
            run(&["-n", machine, "route", "add", "default", "via", &gate])?;
        }
        network.forward(true)?;
        Ok(network)
    }

    /// Lets the router pass packets on, or lose them.
    fn forward(&self, passes: bool) -> Result<(), String> {
        let write = format!("echo {} > /proc/sys/net/ipv4/ip_forward", u8::from(passes));
        run(&["netns", "exec", &self.names[2], "sh", "-c", &write])
    }

    /// A world with ranks on both machines.
    fn plan(&self, wiring: Wiring, machines: &[usize], action: &str) -> Plan {
        let mut plan = Plan::new(wiring, action)
            .with("MASTER_ADDR", FIRST)
            .with("BONFIRE_TOKEN", "secret")
            .with("LOCAL_RANK", "0")
            .with("LOCAL_WORLD_SIZE", "1");
        plan.size = machines.len();
        plan.actions = vec![action.to_owned(); plan.size];
        plan.namespaces = machines.iter().map(|machine| self.names[*machine].clone()).collect();
        plan
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for name in &self.names {
            let _ = run(&["netns", "del", name]);
        }
    }
}

fn run(arguments: &[&str]) -> Result<(), String> {
    let output = Command::new("ip").args(arguments).output();
    let output = output.map_err(|error| format!("ip cannot be run: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(format!("ip {}: {}", arguments.join(" "), said.trim()))
}

/// Makes a network, or says why the test is skipped.
fn network() -> Option<Network> {
    match Network::new() {
        Ok(network) => Some(network),
        Err(reason) if std::env::var("BONFIRE_REQUIRE_NETNS").as_deref() == Ok("1") => {
            panic!("needs network namespaces: {reason}");
        }
        Err(reason) => {
            // Past the test harness, which hides what a passing test prints.
            let _ = writeln!(std::io::stderr(), "SKIPPED: needs network namespaces: {reason}");
            None
        }
    }
}

/// What each of four ranks does on two machines: every operation with every algorithm.
pub(crate) fn every_operation(group: &ProcessGroup) -> Result<(), CommError> {
    assert_eq!(group.num_machines(), 2);
    for &algorithm in Algorithm::ALL {
        let group = group.with_algorithm(algorithm)?;
        for len in [1, 50, 1023, 400_000] {
            work(&group, len)?;
        }
    }
    Ok(())
}

/// A dead peer is noticed within 5 s; the rest is for the machine under test to be busy.
const NOTICED: Duration = Duration::from_secs(7);

#[test]
fn two_machines_agree() {
    let machines: [&'static [usize]; 2] = [&[0, 0, 1, 1], &[0, 1, 0, 1]];
    for_each(machines, |machines| {
        let Some(network) = network() else { return };
        let mut world =
            network.plan(Wiring::Machines(machines), machines, "every operation").start();
        world.await_ready();
        let texts = world.results(&[0, 1, 2, 3], AT_DEADLINE);
        if !texts.iter().all(|text| text.starts_with("ok")) {
            world.fail("two machines do not agree");
        }
        world.finish(&[]);
    });
}

#[test]
fn a_machine_behind_a_dead_link_is_named_within_five_seconds() {
    let wirings = [Wiring::Tcp, Wiring::Mixed];
    let cuts: [&'static [usize]; 2] = [&[0, 0, 1], &[0, 1, 1]];
    let cases = wirings.iter().flat_map(|wiring| cuts.iter().map(move |cut| (*wiring, *cut)));
    for_each(cases, |(wiring, machines)| {
        let Some(network) = network() else { return };
        let wiring = if wiring == Wiring::Mixed { Wiring::Machines(machines) } else { wiring };
        // Far from the deadline of the collectives.
        let plan = network.plan(wiring, machines, "work").with("FAULT_TIMEOUT", "120");
        let mut world = plan.start();
        world.await_ready();
        network.forward(false).unwrap();
        let texts = world.results(&[0, 1, 2], NOTICED);
        let beyond: Vec<usize> = (0..3).filter(|rank| machines[*rank] == 1).collect();
        for (rank, text) in texts.iter().enumerate() {
            // Of several on a lost machine one is heard of first.
            let named = match machines[rank] {
                0 => beyond.iter().any(|lost| text.contains(&format!("rank {lost} died"))),
                _ => text.contains("rank 0 died"),
            };
            if !named || !text.contains("its machine does not answer") || !names_operation(text) {
                world.fail(text);
            }
        }
        // Ends of connections that lead nowhere must not keep the ranks from ending.
        world.finish(&[]);
    });
}
