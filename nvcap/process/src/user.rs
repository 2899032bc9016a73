//! User as which a command is started. The machine's own `getent` and `id` give the users, because they know directories besides the files
//! in /etc, and this program is not linked to any directory service. Without these programs, the files are read. All lookups happen before
//! there is a process to change.

use std::ffi::OsString;
use std::fs;
use std::process::{Command, Stdio};

use super::error::{Error, Result};

/// Identity of a user: all that a process changes before it runs a command as that user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    /// Name of the user.
    pub name: String,
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
    /// All groups of the user.
    pub groups: Vec<u32>,
    /// Variables of the environment that name the user, with their values.
    pub environment: Vec<(&'static str, OsString)>,
}

/// A line of /etc/passwd.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Account {
    name: String,
    uid: u32,
    gid: u32,
    home: String,
    shell: String,
}

impl User {
    /// Finds a user by name or by id, with all groups.
    ///
    /// # Errors
    /// When there is no such user.
    pub fn find(who: &str) -> Result<Self> {
        let account = account(who).ok_or_else(|| {
            Error::new(
                format!("--user {who}"),
                "this machine has no such user",
                "name one that `getent passwd` lists, or its number",
            )
        })?;
        Ok(Self::of(account, None))
    }

    /// Finds the user who called sudo, by the variables that sudo sets; `None` if the variable is not set, is empty, or names root.
    ///
    /// # Errors
    /// When the variable names no user, or a user with neither an account nor a group.
    pub fn of_sudo(variable: impl Fn(&str) -> Option<OsString>) -> Result<Option<Self>> {
        let id = |name: &str| {
            let text = variable(name).filter(|text| !text.is_empty());
            let number = |text: OsString| {
                let number = text.to_str().and_then(|text| text.parse::<u32>().ok());
                number.ok_or_else(|| {
                    Error::new(
                        "running the command as the user who called sudo",
                        format!("{name} is '{}', which is no number", text.display()),
                        "name the user with --user (--user root for root)",
                    )
                })
            };
            text.map(number).transpose()
        };
        let Some(uid) = id("SUDO_UID")?.filter(|uid| *uid != 0) else {
            return Ok(None);
        };
        let gid = id("SUDO_GID")?;
        if let Some(account) = account(&uid.to_string()) {
            return Ok(Some(Self::of(account, gid)));
        }
        let gid = gid.ok_or_else(|| {
            Error::new(
                "running the command as the user of SUDO_UID",
                format!("user {uid} has no account here, and SUDO_GID is not set"),
                "name another with --user (--user root for root)",
            )
        })?;
        Ok(Some(Self {
            name: format!("user {uid}"),
            uid,
            gid,
            groups: vec![gid],
            environment: Vec::new(),
        }))
    }

    /// Makes the user of an account. `gid` is the user's group, if it is not the account's.
    fn of(account: Account, gid: Option<u32>) -> Self {
        let gid = gid.unwrap_or(account.gid);
        let mut groups = groups(&account);
        for group in [account.gid, gid] {
            if !groups.contains(&group) {
                groups.push(group);
            }
        }
        let environment = [
            ("HOME", &account.home),
            ("SHELL", &account.shell),
            ("USER", &account.name),
            ("LOGNAME", &account.name),
        ];
        let environment = environment
            .into_iter()
            .filter(|(_, value)| !value.is_empty())
            .map(|(name, value)| (name, value.into()))
            .collect();
        Self {
            name: account.name,
            uid: account.uid,
            gid,
            groups,
            environment,
        }
    }
}

/// Returns the output of a program of the system; `None` if there is no such program, or if it fails.
fn said(program: &str, args: &[&str]) -> Option<String> {
    let mut command = Command::new(program);
    let command = command.args(args).stdin(Stdio::null());
    let output = command.stderr(Stdio::null()).output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    output.status.success().then_some(text)
}

fn account(who: &str) -> Option<Account> {
    // These are no names; to the programs they would be an option or a second line.
    if who.is_empty() || who.starts_with('-') || who.contains([':', '\n', '/']) {
        return None;
    }
    let listed = || fs::read_to_string("/etc/passwd").ok();
    said("getent", &["passwd", who])
        .and_then(|text| account_in(&text, who))
        .or_else(|| account_in(&listed()?, who))
}

/// Returns the account of a name or an id among lines of /etc/passwd.
fn account_in(text: &str, who: &str) -> Option<Account> {
    let accounts = || text.lines().filter_map(account_of);
    let id = who.parse::<u32>().ok();
    let named = accounts().find(|a| a.name == who);
    named.or_else(|| accounts().find(|a| Some(a.uid) == id))
}

fn account_of(line: &str) -> Option<Account> {
    let fields: Vec<&str> = line.split(':').collect();
    let &[name, _, uid, gid, _, home, shell] = fields.as_slice() else {
        return None;
    };
    Some(Account {
        name: name.to_owned(),
        uid: uid.parse().ok()?,
        gid: gid.parse().ok()?,
        home: home.to_owned(),
        shell: shell.to_owned(),
    })
}

fn groups(account: &Account) -> Vec<u32> {
    let told = said("id", &["-G", &account.name]).and_then(|text| numbers(&text));
    told.unwrap_or_else(|| {
        let text = fs::read_to_string("/etc/group").unwrap_or_default();
        groups_in(&text, &account.name)
    })
}

fn numbers(text: &str) -> Option<Vec<u32>> {
    text.split_whitespace().map(|n| n.parse().ok()).collect()
}

/// Returns the groups that name this user among lines of /etc/group.
fn groups_in(text: &str, name: &str) -> Vec<u32> {
    let group_of = |line: &str| {
        let mut fields = line.split(':').skip(2);
        let gid = fields.next()?.parse().ok()?;
        let mut members = fields.next()?.split(',');
        members.any(|m| m == name).then_some(gid)
    };
    text.lines().filter_map(group_of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &str = "root:x:0:0:root:/root:/bin/bash\nbroken:x:1\nalice:x:1000:1000:Alice,,,:/home/alice:/bin/zsh\n\
                          77:x:1001:1001::/home/77:\n";

    #[test]
    fn accounts_are_found_by_name_and_id() {
        let uid = |who: &str| account_in(PASSWD, who).map(|a| a.uid);
        assert_eq!(uid("alice"), Some(1000));
        assert_eq!(uid("1000"), Some(1000));
        assert_eq!(uid("77"), Some(1001), "a name that is a number");
        assert_eq!(uid("1001"), Some(1001));
        for nobody in ["", "ali", "broken", "2", "-1", "99999999999"] {
            assert_eq!(uid(nobody), None, "{nobody}");
        }
        for wrong in ["--help", "-x", "a:b", "../x", "a\nb", ""] {
            assert_eq!(account(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn groups_are_those_that_name_the_user() {
        let group = "root:x:0:\nvideo:x:44:bob,alice\nrender:x:105:alice\nwheel:x:10:alicea,bob\nbad:x:y:alice\n";
        assert_eq!(groups_in(group, "alice"), [44, 105]);
        assert_eq!(groups_in(group, ""), [0], "no user has this name");
        assert_eq!(numbers("1000 44 105\n"), Some(vec![1000, 44, 105]));
        assert_eq!(numbers("1000 x"), None);
    }

    #[test]
    fn a_user_has_its_groups_once_and_its_environment() {
        let account = account_in(PASSWD, "alice").unwrap();
        let user = User::of(account, Some(44));
        assert_eq!((user.uid, user.gid), (1000, 44));
        let times = |g: u32| user.groups.iter().filter(|have| **have == g).count();
        assert_eq!((times(1000), times(44)), (1, 1));
        let value = |name: &str| {
            let found = user.environment.iter().find(|(n, _)| *n == name);
            found.map(|(_, v)| v.to_str().unwrap())
        };
        assert_eq!(value("HOME"), Some("/home/alice"));
        assert_eq!(value("USER"), Some("alice"));
        assert_eq!(value("LOGNAME"), Some("alice"));
    }

    #[test]
    fn the_user_of_sudo_is_who_called_it() {
        let of = |variables: &'static [(&str, &str)]| {
            User::of_sudo(|name| {
                let found = variables.iter().find(|(n, _)| *n == name);
                found.map(|(_, v)| v.into())
            })
        };
        for nobody in [
            &[][..],
            &[("SUDO_UID", "0"), ("SUDO_GID", "0")],
            &[("SUDO_UID", "")],
        ] {
            assert_eq!(of(nobody).unwrap(), None, "{nobody:?}");
        }
        // The result is an error, and never silently root.
        for wrong in [
            &[("SUDO_UID", "-5")][..],
            &[("SUDO_UID", "alice")],
            &[("SUDO_UID", "4000000001"), ("SUDO_GID", "x")],
        ] {
            let refused = of(wrong).unwrap_err().to_string();
            assert!(refused.contains("which is no number"), "{refused}");
        }
        // A user whom no directory knows, such as the host's user in a container.
        let unknown = of(&[("SUDO_UID", "4000000001"), ("SUDO_GID", "4000000002")]);
        let unknown = unknown.unwrap().unwrap();
        assert_eq!((unknown.uid, unknown.gid), (4_000_000_001, 4_000_000_002));
        assert_eq!(unknown.groups, [4_000_000_002]);
        let refused = of(&[("SUDO_UID", "4000000001")]).unwrap_err().to_string();
        assert!(refused.contains("--user root"), "{refused}");
    }
}
