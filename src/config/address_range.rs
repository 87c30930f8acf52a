//! Addresses that are named one by one or as a network.

use std::net::IpAddr;
use std::str::FromStr;

use serde::Deserialize;

/// One address, or all of a network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct AddressRange {
    network: IpAddr,
    prefix_bits: u32,
}

/// That a text is neither an address nor a network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("this is an address or a network, such as 192.0.2.1, 10.0.0.0/8 or 2001:db8::/32")]
pub struct BadAddressRange;

impl AddressRange {
    /// Whether an address is among them.
    pub fn contains(&self, address: IpAddr) -> bool {
        let common_bits = match (self.network, address.to_canonical()) {
            (IpAddr::V4(network), IpAddr::V4(address)) => {
                (network.to_bits() ^ address.to_bits()).leading_zeros()
            }
            (IpAddr::V6(network), IpAddr::V6(address)) => {
                (network.to_bits() ^ address.to_bits()).leading_zeros()
            }
            _ => return false,
        };
        common_bits >= self.prefix_bits
    }
}

impl FromStr for AddressRange {
    type Err = BadAddressRange;

    fn from_str(text: &str) -> Result<Self, BadAddressRange> {
        let (network, prefix) = match text.split_once('/') {
            Some((network, prefix)) => (network, Some(prefix)),
            None => (text, None),
        };
        let network: IpAddr = network.parse().map_err(|_| BadAddressRange)?;
        let bits = if network.is_ipv4() { 32 } else { 128 };
        let prefix_bits = match prefix {
            Some(prefix) => prefix.parse().ok().filter(|prefix| *prefix <= bits).ok_or(BadAddressRange)?,
            None => bits,
        };
        Ok(Self { network, prefix_bits })
    }
}

impl TryFrom<String> for AddressRange {
    type Error = BadAddressRange;

    fn try_from(text: String) -> Result<Self, BadAddressRange> {
        text.parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_holds_the_addresses_that_begin_as_it_does() {
        for (range, address, is_in) in [
            ("192.0.2.1", "192.0.2.1", true),
            ("192.0.2.1", "192.0.2.2", false),
            ("10.0.0.0/8", "10.255.1.2", true),
            ("10.0.0.0/8", "11.0.0.0", false),
            ("10.0.0.0/8", "::ffff:10.0.0.1", true),
            ("10.9.9.9/8", "10.0.0.1", true),
            ("0.0.0.0/0", "203.0.113.9", true),
            ("0.0.0.0/0", "::1", false),
            ("192.0.2.128/25", "192.0.2.127", false),
            ("2001:db8::/32", "2001:db8:1::1", true),
            ("2001:db8::/32", "2001:db9::", false),
            ("::1", "::1", true),
        ] {
            let range: AddressRange = range.parse().unwrap();
            assert_eq!(range.contains(address.parse().unwrap()), is_in, "{address} in {range:?}");
        }
    }

    #[test]
    fn what_is_no_range_is_refused() {
        for text in
            ["", "localhost", "10.0.0.0/33", "::/129", "10.0.0.0/", "10.0.0/8", "10.0.0.1:80", "1.2.3.4/-1"]
        {
            assert_eq!(text.parse::<AddressRange>(), Err(BadAddressRange), "{text}");
        }
    }
}
