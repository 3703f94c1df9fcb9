//! Several machines on one: network namespaces behind a bridge.

use super::Train;
use std::io::Write as _;
use std::process::Command;

/// Machines, each with an address of its own; gone when dropped.
pub struct Network {
    /// The namespaces of the machines, then that of the bridge.
    names: Vec<String>,
    net: u8,
}

impl Network {
    /// Makes as many machines; `net` tells the networks of a test program apart. `None`, with a message,
    /// where the system does not permit it and BONFIRE_REQUIRE_NETNS is not 1.
    pub fn try_new(count: usize, net: u8) -> Option<Self> {
        match Self::make(count, net) {
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

    fn make(count: usize, net: u8) -> Result<Self, String> {
        let name = |role: usize| format!("bonfire-{}-{net}-{role}", std::process::id());
        let network = Self { names: (0..=count).map(name).collect(), net };
        for name in &network.names {
            run("ip", &["netns", "add", name])?;
            run("ip", &["-n", name, "link", "set", "lo", "up"])?;
        }
        let bridge = &network.names[count];
        run("ip", &["-n", bridge, "link", "add", "br0", "type", "bridge"])?;
        run("ip", &["-n", bridge, "link", "set", "br0", "up"])?;
        for (machine, name) in network.names[..count].iter().enumerate() {
            let port = format!("port{machine}");
            let pair =
                ["link", "add", "eth0", "type", "veth", "peer", "name", &port, "netns", bridge];
            run("ip", &[&["-n", name], &pair[..]].concat())?;
            run("ip", &["-n", bridge, "link", "set", &port, "master", "br0", "up"])?;
            let address = format!("{}/24", network.address(machine));
            run("ip", &["-n", name, "addr", "add", &address, "dev", "eth0"])?;
            run("ip", &["-n", name, "link", "set", "eth0", "up"])?;
        }
        Ok(network)
    }

    /// Limits what each machine sends to 100 Mbit/s.
    pub fn slow_down(&self) -> Result<(), String> {
        let limit = ["rate", "100mbit", "burst", "32kbit", "latency", "400ms"];
        self.names[..self.names.len() - 1].iter().try_for_each(|name| {
            let shape = ["-n", name, "qdisc", "add", "dev", "eth0", "root", "tbf"];
            run("tc", &[&shape[..], &limit[..]].concat())
        })
    }

    /// The address of a machine.
    pub fn address(&self, machine: usize) -> String {
        format!("10.98.{}.{}", self.net, machine + 1)
    }

    /// Runs a call on a machine. Machines share a kernel all the same, so they are told apart by a name.
    pub fn on(&self, machine: usize, train: Train) -> Train {
        let script = format!("exec ip netns exec {} \"$0\" \"$@\"", self.names[machine]);
        train.env("BONFIRE_MACHINE", &format!("machine-{machine}")).through_shell(&script)
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for name in &self.names {
            let _ = run("ip", &["netns", "del", name]);
        }
    }
}

fn run(program: &str, arguments: &[&str]) -> Result<(), String> {
    let output = Command::new(program).args(arguments).output();
    let output = output.map_err(|error| format!("{program} cannot be run: {error}"))?;
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    match output.status.success() {
        true => Ok(()),
        false => Err(format!("{program} {}: {said}", arguments.join(" "))),
    }
}
