//! What lies around each event of a file.

/// Frames a record: its length, the checksum of the length, the data and their checksum, integers
/// with the lowest byte first.
///
/// A reader that meets the torn last record of a killed process finds a length without its data, or
/// a checksum that does not fit, and stops there.
///
/// # Reference
/// `tensorflow/core/lib/io/record_writer.h`.
pub(super) fn framed(data: &[u8]) -> Vec<u8> {
    let length = (data.len() as u64).to_le_bytes();
    let mut record = Vec::with_capacity(data.len() + 16);
    record.extend(length);
    record.extend(masked_checksum(&length).to_le_bytes());
    record.extend(data);
    record.extend(masked_checksum(data).to_le_bytes());
    record
}

/// The checksum CRC-32C, rotated and shifted, since a checksum of data that hold their own
/// checksum says little.
fn masked_checksum(data: &[u8]) -> u32 {
    crc32c::crc32c(data).rotate_right(15).wrapping_add(0xa282_ead8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_are_those_of_tensorflow() {
        assert_eq!(crc32c::crc32c(b"123456789"), 0xe306_9283, "the check value of CRC-32C");
        // Every event file of TensorFlow begins so: a record of 24 bytes.
        let head = [0x18, 0, 0, 0, 0, 0, 0, 0, 0xa3, 0x7f, 0x4b, 0x22];
        assert_eq!(framed(&[0; 24])[..12], head);
    }

    #[test]
    fn the_data_lie_between_the_checksums() {
        let record = framed(b"123456789");
        assert_eq!(record.len(), 8 + 4 + 9 + 4);
        assert_eq!(record[12..21], *b"123456789");
        let checksum = 0xe306_9283u32.rotate_right(15).wrapping_add(0xa282_ead8);
        assert_eq!(record[21..], checksum.to_le_bytes());
        assert_eq!(framed(b"").len(), 16);
    }
}
